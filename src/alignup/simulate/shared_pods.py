"""Where pods without exclusive CPUs could run: under the kubelet alone, and with ``alignup nri`` beside it.

The kubelet lets them run on its whole shared pool; the plugin divides that with ``align.shared_pool``, as here. Means
are over the time that pods run.

The *locality* of a pod is the chance that a thread and a page of it are on the same NUMA node, if its threads run for
equal times on all CPUs that it may use, and allocate memory where they run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.cpus.options import CpuPolicy
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.shared_pool import PoolShare, SharedPod, SharedPool, divide_pool
from alignup.align.workload import Pod
from alignup.align.workload.names import CPU, MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLocality:
    """Means over all pods and times."""

    nodes: float = 0.0  #: NUMA nodes that a pod may use
    on_one: float = 0.0  #: share of pods that may use one only
    locality: float = 0.0  #: 0 to 1
    load: float = 0.0  #: CPU requests of pods in the pool per CPU, on the NUMA node where that is highest

    def to_document(self) -> dict[str, float]:
        return {
            "numaNodes": round(self.nodes, 3),
            "onOne": round(self.on_one, 3),
            "locality": round(self.locality, 3),
            "highestLoad": round(self.load, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPoolResult:
    pods: int  #: that ran in the pool
    moves: int  #: of pods to other NUMA nodes while they ran
    kubelet: PoolLocality
    assist: PoolLocality

    def to_document(self) -> dict[str, Any]:
        localities = {"kubelet": self.kubelet.to_document(), "assist": self.assist.to_document()}
        return {"pods": self.pods, "moves": self.moves, **localities}


class SharedPoolMeter:
    """Follows the ledgers of a simulation."""

    def __init__(self, host: Host, start: float) -> None:
        self._machine = host.machine
        self._time = start
        managed = host.settings.cpus.policy == CpuPolicy.STATIC
        self._all_cpus = 0 if managed else host.view.all_cpus  #: the shared CPUs if no manager gives any away
        self._division: dict[str, PoolShare] = {}
        self._now = (0, PoolLocality(), PoolLocality())  #: pods, and sums over them under the kubelet and the plugin
        self._duration = 0.0
        self._pod_seconds = 0.0
        self._sums = ([0.0] * 4, [0.0] * 4)
        self._uids: set[str] = set()
        self._moves = 0

    def record(self, time: float, ledger: Ledger) -> None:
        """Take note that the host has *ledger* from *time* on."""
        self._advance(time)
        pool = SharedPool(self._machine, self._all_cpus or ledger.cpus.shared, _free_memory(ledger))
        pods = list(_shared_pods(ledger))
        division = divide_pool(pool, pods, self._division)
        earlier = self._division
        self._moves += sum(uid in earlier and earlier[uid].nodes != share.nodes for uid, share in division.items())
        self._division = division
        self._uids.update(division)
        everywhere = {pod.uid: pool.nodes for pod in pods}
        nodes_by_pod = {uid: share.nodes for uid, share in division.items()}
        self._now = len(pods), _measure(pool, pods, everywhere), _measure(pool, pods, nodes_by_pod)

    def result(self, end: float) -> SharedPoolResult:
        self._advance(end)
        kubelet, assist = (self._mean(sums) for sums in self._sums)
        return SharedPoolResult(pods=len(self._uids), moves=self._moves, kubelet=kubelet, assist=assist)

    def _advance(self, time: float) -> None:
        seconds, self._time = time - self._time, time
        pods, *localities = self._now
        if not pods:
            return
        self._duration += seconds
        self._pod_seconds += pods * seconds
        for sums, locality in zip(self._sums, localities, strict=True):
            for index, value in enumerate((locality.nodes, locality.on_one, locality.locality, locality.load)):
                sums[index] += value * seconds

    def _mean(self, sums: list[float]) -> PoolLocality:
        if not self._pod_seconds:
            return PoolLocality()
        nodes, on_one, locality = (value / self._pod_seconds for value in sums[:3])
        return PoolLocality(nodes=nodes, on_one=on_one, locality=locality, load=sums[3] / self._duration)


def _free_memory(ledger: Ledger) -> dict[int, int]:
    nodes = ledger.memory.nodes.items()
    return {node: state.tables[MEMORY].free for node, state in nodes if MEMORY in state.tables}


def _shared_pods(ledger: Ledger) -> Iterable[SharedPod]:
    for uid, admitted_pod in ledger.pods.items():
        if uid not in ledger.cpus.pod_held and (pod := _shared_part(admitted_pod.pod, ledger)) is not None:
            yield pod


def _shared_part(pod: Pod, ledger: Ledger) -> SharedPod | None:
    """Return the containers of *pod* that run as long as it does and have no exclusive CPUs; ``None``: all have."""
    containers_at_once = [*pod.containers, *(container for container in pod.init if container.restartable)]
    containers = [container for container in containers_at_once if ledger.cpus.holds(pod.uid, container.name) is None]
    if not containers:
        return None
    requests = [container.resources.requests for container in containers]
    limits = [container.resources.limits.get(MEMORY) for container in containers]
    masks = [block.nodes for container in containers for block in ledger.memory.blocks(pod.uid, container.name) or ()]
    return SharedPod(
        pod.uid,
        cpu=sum(amounts[CPU].milli() for amounts in requests if CPU in amounts),
        memory=None if None in limits else sum(limit.value() for limit in limits if limit is not None),
        pinned=bits.union(masks),
    )


def _measure(pool: SharedPool, pods: Iterable[SharedPod], nodes_of: Mapping[str, NodeSet]) -> PoolLocality:
    """Return sums over *pods* on the nodes of each, and the highest load."""
    counts = {node: cpus.bit_count() for node, cpus in pool.node_cpus.items()}
    loads = dict.fromkeys(counts, 0.0)
    nodes = on_one = 0
    locality = 0.0
    for pod in pods:
        members = [counts[node] for node in bits.members(nodes_of.get(pod.uid, 0))]
        total = sum(members)
        nodes += len(members)
        on_one += len(members) == 1
        locality += sum(count * count for count in members) / (total * total) if total else 0.0
        for node in bits.members(nodes_of.get(pod.uid, 0)):
            loads[node] += pod.cpu / 1000 / total
    return PoolLocality(nodes=nodes, on_one=on_one, locality=locality, load=max(loads.values(), default=0.0))
