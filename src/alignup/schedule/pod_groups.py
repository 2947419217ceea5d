"""Groups of pods that start together: which pods are in a group, and how many of them it needs at least.

A pod names its group in ``spec.schedulingGroup`` (scheduling.k8s.io), or in a label or annotation of coscheduling,
Volcano or KAI. Groups are of one namespace, so a pod cannot join a group of another one. The minimum is that of the
group's object, if the cluster has such objects and it can be read, else that of an annotation of the pods, else all
pods of the group that exist.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from alignup.kubernetes.api import ApiClient, Change, EventType, Informer, Resource
from alignup.kubernetes.api.errors import ApiError
from alignup.kubernetes.api.objects import ApiPod, ObjectMeta
from alignup.kubernetes.manifests.pod_decoder import ObjectPart
from alignup.placement.scheduling.facts import GroupKey

SIZE_ANNOTATION = "topology.alignup.dev/gang-size"  #: of pods: how many of their group start together
COSCHEDULING, VOLCANO, KAI = "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name", "pod-group-name"
GROUP_LABELS = (COSCHEDULING, VOLCANO, KAI)  #: labels or annotations with the name of a group, the first one counts
KUBERNETES = "spec.schedulingGroup"
RETRY_SECONDS = 30.0  #: before asking again for objects that the cluster does not have
MAX_SIZE = 100_000


class GangPolicy(ObjectPart, frozen=True):
    min_count: int = 1


class GroupPolicy(ObjectPart, frozen=True):
    gang: GangPolicy | None = None  #: ``None``: the pods need not start together


class PodGroupSpec(ObjectPart, frozen=True):
    scheduling_policy: GroupPolicy | None = None  #: of Kubernetes
    min_member: int | None = None  #: of the others
    disruption_mode: Any = None  #: a text in 1.36, from 1.37 on an object with one field


class PodGroup(ObjectPart, frozen=True):
    """A group, of any of the APIs."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodGroupSpec = PodGroupSpec()

    @property
    def minimum(self) -> int:
        policy = self.spec.scheduling_policy
        if policy is not None:
            return max(policy.gang.min_count, 1) if policy.gang else 1
        return max(self.spec.min_member or 1, 1)

    @property
    def disrupted_whole(self) -> bool:
        """Whether its pods are evicted together or not at all."""
        mode = self.spec.disruption_mode
        return mode == "PodGroup" or (isinstance(mode, dict) and "all" in mode)


def _resource(group: str, version: str) -> Resource[PodGroup]:
    return Resource(type=PodGroup, kind="PodGroup", plural="podgroups", group=group, version=version, namespaced=True)


#: The objects of groups by where pods name them; of several versions, a cluster need not have all.
RESOURCES: Mapping[str, tuple[Resource[PodGroup], ...]] = {
    KUBERNETES: (_resource("scheduling.k8s.io", "v1beta1"), _resource("scheduling.k8s.io", "v1alpha2")),
    COSCHEDULING: (_resource("scheduling.x-k8s.io", "v1alpha1"),),
    VOLCANO: (_resource("scheduling.volcano.sh", "v1beta1"),),
    KAI: (_resource("scheduling.run.ai", "v2alpha2"),),
}


def group_of(pod: ApiPod) -> GroupKey | None:
    """Return the group of a pod; ``None``: it is in no group."""
    metadata, group = pod.metadata, pod.spec.scheduling_group
    if group is not None and group.pod_group_name:
        return GroupKey(metadata.namespace, group.pod_group_name, KUBERNETES)
    labels, annotations = metadata.labels, metadata.annotations
    if labels or annotations:
        for label in GROUP_LABELS:
            name = labels.get(label) or annotations.get(label)
            if name:
                return GroupKey(metadata.namespace, name, label)
    return None


class GroupMembers(NamedTuple):
    """The pods of a group that have not failed and are not being deleted."""

    waiting: tuple[ApiPod, ...]  #: that a scheduler can bind
    gated: tuple[ApiPod, ...]
    bound: tuple[ApiPod, ...]  #: succeeded pods included
    minimum: int

    @property
    def present(self) -> int:
        return len(self.waiting) + len(self.gated) + len(self.bound)


class PodGroups:
    """The groups of a cluster, followed, with their pods among *pods*."""

    def __init__(self, client: ApiClient, pods: Informer[ApiPod]) -> None:
        self._client = client
        self._pods = pods
        self._informers = {
            source: [Informer(client, resource) for resource in resources] for source, resources in RESOURCES.items()
        }
        self._keys: dict[str, GroupKey] = {}  #: by uid of a pod
        self._members: dict[GroupKey, dict[str, tuple[str, str]]] = {}  #: uid → namespace and name
        self._listeners: list[Callable[[GroupKey], object]] = []
        for source, informers in self._informers.items():
            for informer in informers:
                informer.subscribe(partial(self._group_changed, source))
        self.settled = asyncio.Event()  #: set when all objects were listed, or cannot be
        pods.subscribe(self._pod_changed)

    async def run(self) -> None:
        """Follow the objects that the cluster has, and that may be read, until cancelled."""
        absent = [informer for informers in self._informers.values() for informer in informers]
        async with asyncio.TaskGroup() as tasks:
            while True:
                for informer in tuple(absent):
                    if await self._is_served(informer.resource):
                        absent.remove(informer)
                        tasks.create_task(informer.run())
                        await informer.wait_tried()
                self.settled.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _is_served(self, resource: Resource[PodGroup]) -> bool:
        try:
            await self._client.get_raw(resource.path(), {"limit": "1"})
        except ApiError:
            return False
        return True

    def subscribe(self, listener: Callable[[GroupKey], object]) -> None:
        """Call *listener* after the object of a group has changed."""
        self._listeners.append(listener)

    def _group_changed(self, source: str, change: Change[PodGroup]) -> None:
        metadata = change.object.metadata
        for listener in self._listeners:
            listener(GroupKey(metadata.namespace, metadata.name, source))

    def key(self, uid: str) -> GroupKey | None:
        """Return the group of a pod of the cluster."""
        return self._keys.get(uid)

    def groups(self) -> tuple[GroupKey, ...]:
        """Return the groups that have pods."""
        return tuple(self._members)

    def members(self, key: GroupKey, *more: ApiPod) -> GroupMembers:
        """Return the pods of a group, and the pods of *more* that the watch has not shown yet."""
        members = self._members.get(key, {})
        pods = {uid: pod for uid, (namespace, name) in members.items() if (pod := self._find(uid, namespace, name))}
        pods = {pod.metadata.uid: pod for pod in more if pod.metadata.uid not in pods} | pods
        counted_pods = [pod for pod in pods.values() if _counts(pod)]
        bound_pods = tuple([pod for pod in counted_pods if pod.spec.node_name])
        unbound = [pod for pod in counted_pods if not pod.spec.node_name]
        waiting_pods = tuple([pod for pod in unbound if not pod.spec.scheduling_gates])
        gated_pods = tuple([pod for pod in unbound if pod.spec.scheduling_gates])
        return GroupMembers(waiting_pods, gated_pods, bound_pods, self._minimum(key, counted_pods))

    def _find(self, uid: str, namespace: str, name: str) -> ApiPod | None:
        pod = self._pods.get(name, namespace=namespace)
        return pod if pod is not None and pod.metadata.uid == uid else None

    def _minimum(self, key: GroupKey, pods: list[ApiPod]) -> int:
        for informer in self._informers[key.source]:
            group = informer.get(key.name, namespace=key.namespace)
            if group is not None:
                return group.minimum
        sizes = [_size(pod) for pod in pods]
        return max(sizes, default=0) or max(len(pods), 1)

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        metadata = change.object.metadata
        key = None if change.type is EventType.DELETED else group_of(change.object)
        key_before = self._keys.get(metadata.uid)
        if key == key_before:
            return
        if key_before is not None:
            del self._keys[metadata.uid]
            self._members[key_before].pop(metadata.uid)
            if not self._members[key_before]:
                del self._members[key_before]
        if key is not None:
            self._keys[metadata.uid] = key
            self._members.setdefault(key, {})[metadata.uid] = (metadata.namespace, metadata.name)


def _counts(pod: ApiPod) -> bool:
    return pod.status.phase != "Failed" and (pod.metadata.deletion_timestamp is None or pod.status.phase == "Succeeded")


def _size(pod: ApiPod) -> int:
    """Return the size that a pod's annotation names; 0: none, or not a number that makes sense."""
    text = pod.metadata.annotations.get(SIZE_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 and int(text) <= MAX_SIZE else 0
