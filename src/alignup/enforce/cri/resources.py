"""The cgroup limits of a container and of its pod, computed as the kubelet does. Pure.

CPU time is shared by requests and capped by limits, unless the container has exclusive CPUs: a cap would only make it
wait for CPUs that no other container may use. Memory is capped by its limit. When memory runs out, the kernel picks its
victims by ``oom_score_adj``, which makes BestEffort pods the first and Guaranteed pods the last.

These settings of the kubelet count with their defaults: no swap, and MemoryQoS without throttling or reservation. The
others are in :class:`NodeLimits`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from alignup.align.bits import CpuSet, NodeSet
from alignup.align.workload import Amounts, Container, Pod, QoS, demand, names
from alignup.align.workload.names import CPU, MEMORY
from alignup.run.cri.types import LinuxResources

PERIOD = 100_000  #: microseconds
NO_LIMIT = -1
NODE_CRITICAL_PRIORITY = 2_000_001_000  #: of the class ``system-node-critical``

_MIN_SHARES, _MAX_SHARES = 2, 262_144
_MIN_WEIGHT, _MAX_WEIGHT = 1, 10_000
_MIN_QUOTA = 1000  #: microseconds
_GUARANTEED_OOM_SCORE = -997
_BEST_EFFORT_OOM_SCORE = 1000
_SIZE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """What limits depend on besides the pod."""

    memory: int  #: bytes of the whole machine
    page_sizes: tuple[int, ...] = ()  #: bytes of every huge page size that the kernel supports
    unified: bool = True  #: cgroup v2
    swap: bool = False  #: whether cgroups can limit swap
    quota: bool = True  #: whether CPU limits are enforced
    period: int = PERIOD  #: microseconds over which they are enforced
    pids_limit: int = 0  #: of a pod; 0: unlimited
    oom_kill_group: bool = True  #: when memory runs out, kill all processes of a container


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupResources:
    """The limits of a pod's cgroup, or of the cgroup of all pods; 0 means unset."""

    cpu_shares: int
    cpu_quota: int = 0  #: microseconds a period; -1: no limit
    cpu_period: int = 0
    memory_limit: int = 0  #: bytes
    pids_limit: int = 0
    hugepages: Mapping[str, int] = field(default_factory=dict)  #: page size, such as ``2MB`` → bytes


def container_resources(  # noqa: PLR0913 - what was decided, besides the request
    pod: Pod,
    container: Container,
    *,
    node_limits: NodeLimits,
    exclusive: bool = False,
    cpus: CpuSet = 0,
    nodes: NodeSet = 0,
) -> LinuxResources:
    """Return the limits of *container* on *cpus* and *nodes*; *exclusive* if these CPUs are its own."""
    pod_limits, own = demand.pod_level_amounts(pod.resources.limits), container.resources.limits
    # The pod's limit counts where the container has none. For huge pages, a limit of zero is one.
    limits = {**pod_limits, **{name: amount for name, amount in own.items() if not amount.is_zero}}
    request = container.resources.requests.get(CPU)
    cpu_limit, memory = _milli(limits, CPU), _value(limits, MEMORY)
    quota = NO_LIMIT if exclusive else milli_to_quota(cpu_limit, period=node_limits.period)
    unified = {}
    if node_limits.unified:
        oom = {"memory.oom.group": "1"} if node_limits.oom_kill_group else {}
        swap = {"memory.swap.max": "0"} if node_limits.swap else {}
        unified = {**oom, "memory.min": "0", "memory.low": "0", **swap}
    return LinuxResources(
        cpus=cpus,
        nodes=nodes,
        cpu_shares=milli_to_shares(cpu_limit if request is None else request.milli()),
        cpu_quota=quota if node_limits.quota else 0,
        cpu_period=node_limits.period if node_limits.quota else 0,
        memory_limit=memory,
        memory_swap_limit=memory if node_limits.swap and not node_limits.unified else 0,
        oom_score_adj=oom_score_adj(pod, container, memory=node_limits.memory),
        hugepages=_hugepages({**pod_limits, **own}, node_limits.page_sizes),
        unified=unified,
    )


def pod_cgroup_resources(pod: Pod, *, node_limits: NodeLimits, exclusive: bool = False) -> CgroupResources:
    """Return the limits of a pod's cgroup; *exclusive* if one of its containers has exclusive CPUs."""
    requests, limits = demand.requests(pod), demand.limits(pod)
    pids, hugepages = node_limits.pids_limit, _hugepages(requests, node_limits.page_sizes)
    if pod.qos is QoS.BEST_EFFORT:
        return CgroupResources(cpu_shares=_MIN_SHARES, pids_limit=pids, hugepages=hugepages)
    quota = milli_to_quota(_milli(limits, CPU), period=node_limits.period) if _all_limited(pod, CPU) else 0
    uncapped = exclusive or not node_limits.quota
    return CgroupResources(
        cpu_shares=milli_to_shares(_milli(requests, CPU)),
        cpu_quota=NO_LIMIT if quota and uncapped else quota,
        cpu_period=node_limits.period if quota else 0,
        memory_limit=_value(limits, MEMORY) if _all_limited(pod, MEMORY) else 0,
        pids_limit=pids,
        hugepages=hugepages,
    )


def node_cgroup_resources(allocatable: Amounts, *, node_limits: NodeLimits) -> CgroupResources:
    return CgroupResources(
        cpu_shares=milli_to_shares(_milli(allocatable, CPU)),
        memory_limit=_value(allocatable, MEMORY),
        hugepages=_hugepages(allocatable, node_limits.page_sizes),
    )


def milli_to_shares(milli: int) -> int:
    """Convert a CPU request in thousandths to CPU shares."""
    return min(max(milli * 1024 // 1000, _MIN_SHARES), _MAX_SHARES)


def milli_to_quota(milli: int, *, period: int = PERIOD) -> int:
    """Convert a CPU limit in thousandths to microseconds a *period*; 0 means no limit."""
    return max(milli * period // 1000, _MIN_QUOTA) if milli else 0


def shares_to_weight(cpu_shares: int) -> int:
    """Convert CPU shares to a cgroup v2 weight, with the formula of the kubelet and runc 1.1."""
    spread = (_MAX_WEIGHT - _MIN_WEIGHT) * (cpu_shares - _MIN_SHARES)
    return min(_MIN_WEIGHT + spread // (_MAX_SHARES - _MIN_SHARES), _MAX_WEIGHT)


def page_name(size: int) -> str:
    """Return a huge page size as in the names of the kernel's files, such as ``2MB``."""
    power = 0
    while size >= 1024 and power < len(_SIZE_UNITS) - 1:
        size //= 1024
        power += 1
    return f"{size}{_SIZE_UNITS[power]}"


def oom_score_adj(pod: Pod, container: Container, *, memory: int) -> int:
    """Return how early the kernel kills *container* when the machine's *memory* runs out: 1000 first, -997 last.

    A Burstable container is safer the more it requested. A sidecar is as safe as the pod's container with the smallest
    request.
    """
    if pod.qos is QoS.GUARANTEED or (pod.priority is not None and pod.priority >= NODE_CRITICAL_PRIORITY):
        return _GUARANTEED_OOM_SCORE
    if pod.qos is QoS.BEST_EFFORT:
        return _BEST_EFFORT_OOM_SCORE
    request = _value(container.resources.requests, MEMORY)
    if container.restartable and container in pod.init and pod.containers:
        request = max(request, min(_value(one.resources.requests, MEMORY) for one in pod.containers))
    if total := _value(pod.resources.requests, MEMORY):
        # Each container has a share of the pod-level request beyond the containers' own requests.
        used = _value(demand.requests(pod, pod_level=False, overhead=False), MEMORY)
        request += max(0, total - used) // len(pod.all_containers)
    # Never as safe as Guaranteed, never as exposed as BestEffort.
    return min(max(1000 - 1000 * request // memory, 1000 + _GUARANTEED_OOM_SCORE), _BEST_EFFORT_OOM_SCORE - 1)


def _all_limited(pod: Pod, name: str) -> bool:
    """Whether all containers, or the pod as a whole, have a limit."""
    if pod.qos is QoS.GUARANTEED or _value(pod.resources.limits, name):
        return True
    return all(_value(one.resources.limits, name) for one in pod.all_containers)


def _hugepages(amounts: Amounts, sizes: tuple[int, ...]) -> dict[str, int]:
    """Return the limit of every page size that the kernel supports: 0 unless it is among *amounts*."""
    limits = {page_name(size): 0 for size in sizes}
    for name, amount in amounts.items():
        size = names.page_size(name) if names.is_hugepages(name) else None
        if size in sizes and size is not None:
            limits[page_name(size)] += amount.value()
    return limits


def _milli(amounts: Amounts, name: str) -> int:
    return amounts[name].milli() if name in amounts else 0


def _value(amounts: Amounts, name: str) -> int:
    return amounts[name].value() if name in amounts else 0
