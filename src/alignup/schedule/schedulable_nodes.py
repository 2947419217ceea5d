"""The nodes that schedulers bind a pod to, as the Node objects show them: by selectors and taints, and by what is left.

A kubelet ignores extended resources that it does not know, and counts pods as ended a little earlier than a scheduler
does. So a node whose kubelet admits a pod may be one to which the scheduler does not bind it.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from alignup.align import fit
from alignup.align.errors import QuantityError
from alignup.align.fit import NodeAllocatable, UsedResources
from alignup.align.quantity import Quantity
from alignup.align.workload import Pod, demand, names
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.kubernetes.api import Change, EventType, Informer
from alignup.kubernetes.api.objects import Amount, ApiNode, ApiPod, ApiPodSpec
from alignup.placement.verdict import DEFECT
from alignup.schedule.node_selection import exclusions, selection_key

MAX_SELECTIONS = 256  #: different selectors for which nodes are kept
MAX_ALIKE = 4096  #: kinds of pods whose requests are remembered
_NO_REQUEST = FitRequest(0, 0, 0, {})


class NodeFilter:
    """The nodes that schedulers consider for pods with the same selectors; *nodes* are all nodes of the cluster.

    A node whose selection raises an error is not considered, and *failed* is called with its name.
    """

    def __init__(self, nodes: Informer[ApiNode], on_failure: Callable[[str, Exception], object]) -> None:
        self._nodes = nodes
        self._failed = on_failure
        self._selections: OrderedDict[Hashable, tuple[ApiPodSpec, set[str]]] = OrderedDict()

    def allowed(self, spec: ApiPodSpec, key: Hashable = None) -> set[str]:
        """Return the names of the nodes; the set is current until the next call. *key*: the selection key of *spec*."""
        key = key or selection_key(spec)
        if key not in self._selections:
            self._selections[key] = (
                spec,
                {node.metadata.name for node in self._nodes.objects.values() if not self.excludes(node, spec)},
            )
            if len(self._selections) > MAX_SELECTIONS:
                self._selections.popitem(last=False)
        self._selections.move_to_end(key)
        return self._selections[key][1]

    def allows(self, spec: ApiPodSpec, name: str, key: Hashable = None) -> bool:
        """Return whether a node exists and is allowed, without looking at others."""
        selection = self._selections.get(key or selection_key(spec))
        if selection is not None:
            return name in selection[1]
        node = self._nodes.get(name)
        return node is not None and not self.excludes(node, spec)

    def excludes(self, node: ApiNode, spec: ApiPodSpec) -> Sequence[str]:
        """Return why schedulers do not consider a node; a failure concerns this node only."""
        try:
            return exclusions(node, spec)
        except Exception as error:  # noqa: BLE001 - whatever one node raises, others are considered
            self._failed(node.metadata.name, error)
            return (DEFECT,)

    def update(self, change: Change[ApiNode]) -> None:
        """Note that a node was added, has changed or is gone."""
        node, is_deleted = change.object, change.type is EventType.DELETED
        for spec, allowed_names in self._selections.values():
            allowed_names.discard(node.metadata.name)
            if not is_deleted and not self.excludes(node, spec):
                allowed_names.add(node.metadata.name)


class NodeCapacity:
    """How much of the allocatable resources of nodes is left beside the pods that are bound to them.

    *pods* returns the pods of a node by uid; *read* decodes one of them (``None``: invalid), when its node is asked
    about for the first time after a change.
    """

    def __init__(
        self,
        nodes: Informer[ApiNode],
        pods: Callable[[str], Mapping[str, ApiPod]],
        read: Callable[[ApiPod], Pod | None],
        isolate: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._nodes = nodes
        self._pods = pods
        self._read = read
        self._isolated = isolate
        self._used: dict[str, UsedResources] = {}
        #: node → what its bound pods use, other pods, and what they use together
        self._used_beside: dict[str, tuple[UsedResources, Sequence[Pod], UsedResources]] = {}
        self._requests: dict[str, FitRequest] = {}  #: uid → what the pod requests
        #: identities of the parts of pods, which are stored once for pods that are alike → the parts, and the request
        self._alike: dict[tuple[int, ...], tuple[tuple[object, ...], FitRequest]] = {}
        self._allocatable: dict[str, NodeAllocatable] = {}

    def forget_node(self, node: str) -> None:
        """Note that a Node object has changed, or is gone."""
        self._allocatable.pop(node, None)
        self._used.pop(node, None)
        self._used_beside.pop(node, None)

    def forget_pods(self) -> None:
        """Note that all pods were listed again."""
        self._used.clear()
        self._requests.clear()
        self._alike.clear()

    def pod_changed(self, node: str, old: ApiPod | None, pod: ApiPod, *, ended: bool) -> bool:
        """Note that a pod is bound to *node*, has changed there or ended; return whether it was resized."""
        uid, is_resized = pod.metadata.uid, False
        if ended:
            self._requests.pop(uid, None)
        elif old is not None:
            if uid not in self._requests or _resources(old) == _resources(pod):
                return False
            is_resized = self._requests.pop(uid) != self._request(uid, pod)
        self._used.pop(node, None)
        return is_resized

    def insufficient(self, name: str, pod: Pod, *, beside: Sequence[Pod] = (), empty: bool = False) -> tuple[str, ...]:
        """Return the resources that a node, or an *empty* node like it, lacks for *pod* beside others."""
        node = self._nodes.get(name)
        if node is None:
            return (fit.PODS,)
        if name not in self._allocatable:
            self._allocatable[name] = read_allocatable(node.status.allocatable)
        capacity = self._allocatable[name]
        if empty:
            usage = UsedResources()
        elif name in self._used:
            usage = self._used[name]
        else:
            usage = UsedResources()
            for uid, bound_pod in self._pods(name).items():
                with self._isolated(f"{bound_pod.metadata.full_name} on node {name}"):
                    usage = usage.plus(self._request(uid, bound_pod))
            self._used[name] = usage
        if beside:
            bound_use, others, together = self._used_beside.get(name, (None, (), usage))
            if bound_use is not usage or others != beside:
                together = _sum(usage, (_used(other, capacity.scalars) for other in beside))
                self._used_beside[name] = (usage, beside, together)
            usage = together
        request = demand.fit_request(demand.without_claimed(pod, capacity.scalars))
        shortages = fit.insufficient_resources(request, usage=usage, allocatable=capacity)
        return tuple(shortage.resource for shortage in shortages)

    def _request(self, uid: str, pod: ApiPod) -> FitRequest:
        if uid not in self._requests:
            spec, status = pod.spec, pod.status
            parts: tuple[object, ...] = (spec.containers, spec.init_containers, spec.resources, spec.overhead)
            parts += (spec.resource_claims, status.container_statuses, status.init_container_statuses)
            parts += (status.extended_resource_claim_status,)
            key = tuple(map(id, parts))
            if key not in self._alike:
                decoded_pod = self._read(pod)
                if len(self._alike) >= MAX_ALIKE:
                    self._alike.clear()
                self._alike[key] = (parts, _NO_REQUEST if decoded_pod is None else _used(decoded_pod, {}))
            self._requests[uid] = self._alike[key][1]
        return self._requests[uid]


def _resources(pod: ApiPod) -> tuple[object, ...]:
    """Return the parts of a pod that a resize changes."""
    spec, status = pod.spec, pod.status
    reported_pods = [
        (container.name, container.allocated_resources, container.resources)
        for container in (*status.init_container_statuses, *status.container_statuses)
    ]
    return spec.init_containers, spec.containers, spec.resources, reported_pods


def _used(pod: Pod, capacity: Mapping[str, int]) -> FitRequest:
    return demand.fit_used(demand.without_claimed(pod, capacity))


def _sum(usage: UsedResources, requests: Iterable[FitRequest]) -> UsedResources:
    for request in requests:
        usage = usage.plus(request)
    return usage


def read_allocatable(amounts: Mapping[str, Amount]) -> NodeAllocatable:
    """Read the allocatable resources of a Node object; an unreadable amount counts as none."""
    quantities, zero = dict[str, Quantity](), Quantity.ZERO
    for name, text in amounts.items():
        with suppress(QuantityError):
            quantities[name] = Quantity.parse(str(text))
    return NodeAllocatable(
        milli_cpu=quantities.get(CPU, zero).milli(),
        memory=quantities.get(MEMORY, zero).value(),
        ephemeral_storage=quantities.get(EPHEMERAL_STORAGE, zero).value(),
        pods=quantities.get(fit.PODS, zero).value(),
        scalars={name: amount.value() for name, amount in quantities.items() if names.is_scalar(name)},
    )


def affects_choice(change: Change[ApiNode]) -> bool:
    """Return whether a Node has changed in what the choice of a node depends on: not in its heartbeats."""
    node, old = change.object, change.old
    if change.type is not EventType.MODIFIED or old is None:
        return True
    return (old.status.allocatable, old.metadata.labels, old.spec) != (
        node.status.allocatable,
        node.metadata.labels,
        node.spec,
    )
