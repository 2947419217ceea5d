"""What the Node objects say is left on each node, as schedulers count it.

A kubelet ignores extended resources that it does not know, and counts pods as ended a little earlier than a scheduler
does. So a node whose kubelet admits a pod may be one to which the scheduler does not bind it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from alignup.align import fit
from alignup.align.errors import QuantityError
from alignup.align.fit import NodeAllocatable, UsedResources
from alignup.align.quantity import Quantity
from alignup.align.workload import Pod, demand, names
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.kubernetes.api.objects import Amount, ApiNode, ApiPod

NO_REQUEST = FitRequest(0, 0, 0, {})


class NodeRoom:
    """The pods of every node, and how much of its allocatable resources they request.

    Pods are read when a node is asked about for the first time after a change: reading all of them takes long.
    """

    def __init__(self, read: Callable[[ApiPod], Pod | None]) -> None:
        self._read = read
        self._pods: dict[str, dict[str, ApiPod]] = {}  #: node → uid → pod
        self._nodes: dict[str, str] = {}  #: uid → node
        self._used: dict[str, UsedResources] = {}
        self._requests: dict[str, FitRequest] = {}  #: uid → what the pod requests
        self._allocatable: dict[str, NodeAllocatable] = {}

    def put_pod(self, pod: ApiPod, node: str) -> None:
        """Count a pod that is bound to *node*, or will be."""
        uid = pod.metadata.uid
        before = self._nodes.get(uid)
        if before not in {None, node}:
            self.remove_pod(uid)
        self._nodes[uid] = node
        self._pods.setdefault(node, {})[uid] = pod
        if before != node:
            self._used.pop(node, None)

    def remove_pod(self, uid: str) -> None:
        node = self._nodes.pop(uid, None)
        if node is not None:
            self._pods[node].pop(uid, None)
            self._requests.pop(uid, None)
            self._used.pop(node, None)

    def forget_node(self, node: str) -> None:
        """The Node object has changed, or is gone."""
        self._allocatable.pop(node, None)

    def count(self, node: str) -> int:
        """The number of pods on *node*."""
        return len(self._pods.get(node, ()))

    def insufficient(self, node: ApiNode, pod: Pod, *, beside: Iterable[Pod] | None = None) -> tuple[str, ...]:
        """The resources of which *node* has too little left for *pod*; *beside* these pods only, if given."""
        name = node.metadata.name
        if name not in self._allocatable:
            self._allocatable[name] = read_allocatable(node.status.allocatable)
        used = self._used_on(name) if beside is None else _sum(map(demand.fit_used, beside))
        request = demand.fit_request(pod)
        found = fit.insufficient_resources(request, used=used, allocatable=self._allocatable[name])
        return tuple(one.resource for one in found)

    def _used_on(self, node: str) -> UsedResources:
        """What the pods of *node* request."""
        used = self._used.get(node)
        if used is None:
            pods = self._pods.get(node, {})
            used = self._used[node] = _sum(self._request(uid, pod) for uid, pod in pods.items())
        return used

    def _request(self, uid: str, pod: ApiPod) -> FitRequest:
        if uid not in self._requests:
            read = self._read(pod)
            self._requests[uid] = NO_REQUEST if read is None else demand.fit_used(read)
        return self._requests[uid]


def _sum(requests: Iterable[FitRequest]) -> UsedResources:
    used = UsedResources()
    for request in requests:
        used = used.plus(request)
    return used


def read_allocatable(amounts: Mapping[str, Amount]) -> NodeAllocatable:
    """Read the allocatable resources of a Node object; an unreadable amount counts as none."""
    found = dict(_readable(amounts))
    nothing = Quantity.ZERO
    return NodeAllocatable(
        milli_cpu=found.get(CPU, nothing).milli(),
        memory=found.get(MEMORY, nothing).value(),
        ephemeral_storage=found.get(EPHEMERAL_STORAGE, nothing).value(),
        pods=found.get(fit.PODS, nothing).value(),
        scalars={name: amount.value() for name, amount in found.items() if names.is_scalar(name)},
    )


def _readable(amounts: Mapping[str, Amount]) -> Iterator[tuple[str, Quantity]]:
    for name, text in amounts.items():
        try:
            yield name, Quantity.parse(str(text))
        except QuantityError:
            continue
