"""What a container and its pod are held to by their groups, worked out as the kubelet does. Pure.

CPU time is shared by what was asked for, and capped by what it is limited to, unless the container has CPUs of its own:
a cap would only make it wait for CPUs that nobody else may use. Memory is capped by the limit. When memory runs out the
kernel looks at ``oom_score_adj``, by which the kubelet puts BestEffort pods first in line and Guaranteed ones last.

Of the kubelet's settings these count as their defaults say: no swap, MemoryQoS without throttling and without
reservation. Others are part of the :class:`NodeLimits`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from alignup.align.bits import CpuSet, NodeSet
from alignup.align.workload import Amounts, Container, Pod, QoS, demand, names
from alignup.align.workload.names import CPU, MEMORY
from alignup.enforce.cri.types import LinuxResources

PERIOD = 100_000  #: microseconds
NO_LIMIT = -1
NODE_CRITICAL_PRIORITY = 2_000_001_000  #: the priority of class ``system-node-critical``

_LEAST_SHARES, _MOST_SHARES = 2, 262_144
_LEAST_WEIGHT, _MOST_WEIGHT = 1, 10_000
_LEAST_QUOTA = 1000  #: microseconds
_GUARANTEED = -997
_BEST_EFFORT = 1000
_SIZE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """What limits depend on besides the pod."""

    memory: int  #: bytes of the machine, all of them
    page_sizes: tuple[int, ...] = ()  #: bytes of the huge pages the kernel knows, whether there are any or not
    unified: bool = True  #: cgroup version 2
    swap: bool = False  #: whether groups can limit swap
    quota: bool = True  #: whether limits of CPU time are held
    period: int = PERIOD  #: microseconds over which they are
    processes: int = 0  #: that a pod may have; 0: as many as it likes
    killed_together: bool = True  #: all processes of a container, when its memory runs out


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupResources:
    """What a pod as a whole, or all pods, are held to; 0: not said."""

    cpu_shares: int
    cpu_quota: int = 0  #: microseconds a period; -1: no limit
    cpu_period: int = 0
    memory_limit: int = 0  #: bytes
    processes: int = 0
    hugepages: Mapping[str, int] = field(default_factory=dict)  #: page size as the kernel's files have it → bytes


def container_resources(  # noqa: PLR0913 - what was decided, beside what was asked for
    pod: Pod, container: Container, *, ground: NodeLimits, exclusive: bool = False, cpus: CpuSet = 0, nodes: NodeSet = 0
) -> LinuxResources:
    """What *container* is held to on *cpus* and *nodes*; *exclusive*: these CPUs are its own."""
    limits = _limits(pod, container)
    request = container.resources.requests.get(CPU)
    capped, memory = _milli(limits, CPU), _value(limits, MEMORY)
    return LinuxResources(
        cpus=cpus,
        nodes=nodes,
        cpu_shares=milli_to_shares(capped if request is None else request.milli()),
        cpu_quota=_container_quota(capped, ground=ground, exclusive=exclusive),
        cpu_period=ground.period if ground.quota else 0,
        memory_limit=memory,
        memory_swap_limit=memory if ground.swap and not ground.unified else 0,
        oom_score_adj=oom_score_adj(pod, container, memory=ground.memory),
        hugepages=_pages(_hugepage_limits(pod, container), ground=ground),
        unified=_unified(ground),
    )


def pod_cgroup_resources(pod: Pod, *, ground: NodeLimits, exclusive: bool = False) -> CgroupResources:
    """What *pod* as a whole is held to; *exclusive*: one of its containers has CPUs of its own."""
    asked, limits = demand.requests(pod), demand.limits(pod)
    pages = _pages(asked, ground=ground)
    if pod.qos is QoS.BEST_EFFORT:
        return CgroupResources(cpu_shares=_LEAST_SHARES, processes=ground.processes, hugepages=pages)
    capped = milli_to_quota(_milli(limits, CPU), period=ground.period) if _everyone_limited(pod, CPU) else 0
    uncapped = exclusive or not ground.quota
    return CgroupResources(
        cpu_shares=milli_to_shares(_milli(asked, CPU)),
        cpu_quota=NO_LIMIT if capped and uncapped else capped,
        cpu_period=ground.period if capped else 0,
        memory_limit=_value(limits, MEMORY) if _everyone_limited(pod, MEMORY) else 0,
        processes=ground.processes,
        hugepages=pages,
    )


def node_cgroup_resources(limits: Amounts, *, ground: NodeLimits) -> CgroupResources:
    """What all pods together are held to."""
    return CgroupResources(
        cpu_shares=milli_to_shares(_milli(limits, CPU)),
        memory_limit=_value(limits, MEMORY),
        hugepages=_pages(limits, ground=ground),
    )


def milli_to_shares(milli: int) -> int:
    """The part of contended CPUs that a request of *milli* thousandths of one comes to."""
    return min(max(milli * 1024 // 1000, _LEAST_SHARES), _MOST_SHARES)


def milli_to_quota(milli: int, *, period: int = PERIOD) -> int:
    """The microseconds a *period* that a limit of *milli* thousandths of a CPU comes to; 0: there is no limit."""
    return max(milli * period // 1000, _LEAST_QUOTA) if milli else 0


def shares_to_weight(cpu_shares: int) -> int:
    """Shares as version 2 counts them, in the way the kubelet and runc 1.1 convert them."""
    spread = (_MOST_WEIGHT - _LEAST_WEIGHT) * (cpu_shares - _LEAST_SHARES)
    return min(_LEAST_WEIGHT + spread // (_MOST_SHARES - _LEAST_SHARES), _MOST_WEIGHT)


def page_name(size: int) -> str:
    """A size of huge pages as the kernel's files have it, such as ``2MB``."""
    power = 0
    while size >= 1024 and power < len(_SIZE_UNITS) - 1:
        size //= 1024
        power += 1
    return f"{size}{_SIZE_UNITS[power]}"


def oom_score_adj(pod: Pod, container: Container, *, memory: int) -> int:
    """How early the kernel is to kill *container* when the machine's *memory* runs out: 1000 first, -997 last.

    A Burstable container stands the further back, the more it asked for. A sidecar is not killed before the container
    it serves that asked for least.
    """
    if pod.qos is QoS.GUARANTEED or (pod.priority is not None and pod.priority >= NODE_CRITICAL_PRIORITY):
        return _GUARANTEED
    if pod.qos is QoS.BEST_EFFORT:
        return _BEST_EFFORT
    asked = _value(container.resources.requests, MEMORY)
    if container.restartable and container in pod.init and pod.containers:
        asked = max(asked, min(_value(one.resources.requests, MEMORY) for one in pod.containers))
    asked += _spare_memory(pod)
    # Never as safe as Guaranteed, never as exposed as BestEffort.
    return min(max(1000 - 1000 * asked // memory, 1000 + _GUARANTEED), _BEST_EFFORT - 1)


def _container_quota(milli: int, *, ground: NodeLimits, exclusive: bool) -> int:
    if not ground.quota:
        return 0
    return NO_LIMIT if exclusive else milli_to_quota(milli, period=ground.period)


def _spare_memory(pod: Pod) -> int:
    """What the pod as a whole asked for beyond its containers, a container's part of it."""
    total = _value(pod.resources.requests, MEMORY)
    if not total:
        return 0
    used = _value(demand.requests(pod, pod_level=False, overhead=False), MEMORY)
    return max(0, total - used) // len(pod.everyone)


def _limits(pod: Pod, container: Container) -> Amounts:
    """The limits of a container, or those of its pod where it has none."""
    said = {name: amount for name, amount in container.resources.limits.items() if not amount.is_zero}
    return {**demand.pod_level_amounts(pod.resources.limits), **said}


def _hugepage_limits(pod: Pod, container: Container) -> Amounts:
    """The same for huge pages, where a limit of nothing counts too."""
    return {**demand.pod_level_amounts(pod.resources.limits), **container.resources.limits}


def _everyone_limited(pod: Pod, name: str) -> bool:
    """Whether all containers have a limit, or the pod as a whole has."""
    if pod.qos is QoS.GUARANTEED or _value(pod.resources.limits, name):
        return True
    return all(_value(one.resources.limits, name) for one in pod.everyone)


def _pages(amounts: Amounts, *, ground: NodeLimits) -> dict[str, int]:
    """The limit of every size of huge pages the kernel knows: nothing, unless it is among *amounts*."""
    found = {page_name(size): 0 for size in ground.page_sizes}
    for name, amount in amounts.items():
        size = names.page_size(name) if names.is_hugepages(name) else None
        if size in ground.page_sizes and size is not None:
            found[page_name(size)] += amount.value()
    return found


def _unified(ground: NodeLimits) -> dict[str, str]:
    if not ground.unified:
        return {}
    together = {"memory.oom.group": "1"} if ground.killed_together else {}
    said = {**together, "memory.min": "0", "memory.low": "0"}
    return {**said, "memory.swap.max": "0"} if ground.swap else said


def _milli(amounts: Amounts, name: str) -> int:
    return amounts[name].milli() if name in amounts else 0


def _value(amounts: Amounts, name: str) -> int:
    return amounts[name].value() if name in amounts else 0
