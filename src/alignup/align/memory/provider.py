"""The memory provider: memory and huge pages of Guaranteed pods, on chosen NUMA nodes.

Init containers lend their memory to later containers, but only on exactly the same nodes. A request that cannot be
placed at all gets no hint, which counts as "anywhere"; it is rejected only at allocation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from alignup.align.bits import NodeSet, members, quote
from alignup.align.errors import ProviderError, SettingsError
from alignup.align.hint import Hint, HintList, HintsByResource, Need, Provider
from alignup.align.machine import NumaNode
from alignup.align.memory.hints import memory_family
from alignup.align.memory.ledger import EMPTY_TABLE, Block, MemoryLedger, Sizes
from alignup.align.reason_codes import EMPTY_POD_SHARED_POOL
from alignup.align.release import NEWEST, Release
from alignup.align.settings import FeatureGates
from alignup.align.workload import Container, Pod, QoS, demand

_NO_DEFAULT = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"


class MemoryPolicy(StrEnum):
    NONE = "None"
    STATIC = "Static"

    @classmethod
    def _missing_(cls, value: object) -> None:
        """Raise the errors of the kubelet on Linux for another ``memoryManagerPolicy``."""
        if value == "BestEffort":
            raise SettingsError('policy "BestEffort" is not available for platform "linux"')
        raise SettingsError(f"unknown policy: {quote(str(value))}")


@dataclass(frozen=True, slots=True)
class MemorySettings:
    policy: MemoryPolicy = MemoryPolicy.NONE
    pod_level_managers: bool = False  #: whether pod-level resources are allocated as a whole; else they are ignored
    #: copy two defects of the kubelet: one node of a group is allocated alone (here the container joins the group), and
    #: a pod with pod-level resources that is admitted again is placed and charged again (here it stays)
    kubelet_faults: bool = False
    release: Release = NEWEST

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", MemoryPolicy(self.policy))

    @classmethod
    def of_gates(cls, policy: MemoryPolicy, gates: FeatureGates, *, kubelet_faults: bool = False) -> Self:
        both = gates.on("PodLevelResources") and gates.on("PodLevelResourceManagers")
        return cls(policy, pod_level_managers=both, kubelet_faults=kubelet_faults, release=gates.release)


@dataclass(frozen=True)
class MemoryProvider(Provider[MemoryLedger]):
    settings: MemorySettings = field(default_factory=MemorySettings)
    nodes: Sequence[NumaNode] = ()
    reserved: Mapping[int, Sizes] = field(default_factory=dict)  #: node → type → bytes reserved for the system

    name = MemoryLedger.PROVIDER

    def initial_ledger(self) -> MemoryLedger:
        """Return the idle ledger; it is empty if memory is not managed."""
        if self.settings.policy is MemoryPolicy.NONE:
            return MemoryLedger()
        return MemoryLedger.of_machine(self.nodes, self.reserved)

    def need(self, pod: Pod, container: Container | None) -> Mapping[str, int]:
        """Return the bytes of each type to allocate to a container or a whole pod; empty if they are not managed.

        ``ProviderError`` for an amount that cannot be read. It rejects the pod, but only at the allocation.
        """
        managers = self.settings.pod_level_managers
        if self.settings.policy is MemoryPolicy.NONE or pod.qos is not QoS.GUARANTEED:
            return {}
        if pod.has_pod_level_resources and not managers:
            return {}
        return demand.memory(pod, container, pod_level_managers=managers)

    def needs(self, ledger: MemoryLedger, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        try:
            need = self.need(pod, container)
        except ProviderError:
            return {}
        return {
            type_: Need(size, {id_: node.tables.get(type_, EMPTY_TABLE).free for id_, node in ledger.nodes.items()})
            for type_, size in need.items()
        }

    def allocated_share(self, ledger: MemoryLedger, resource: str, nodes: NodeSet) -> tuple[int, int]:
        tables = [
            ledger.nodes[node].tables.get(resource, EMPTY_TABLE) for node in members(nodes) if node in ledger.nodes
        ]
        return sum(table.reserved for table in tables), sum(table.allocatable for table in tables)

    def hints(self, ledger: MemoryLedger, pod: Pod, container: Container | None) -> HintsByResource:
        """Return hints by type; ``None``: no preference, an empty mapping: impossible."""
        try:
            need = self.need(pod, container)
        except ProviderError:
            return None
        if not need and not self._places_empty_request(pod, container):
            return None
        if container is not None:
            blocks = ledger.blocks(pod.uid, container.name)
            if blocks is not None:
                return _hints_for_held(blocks, need)
        else:
            if pod.has_pod_level_resources and _empty_shared_pool(pod, need):
                return dict.fromkeys(need, ())
            if self.settings.release.restores_pods and pod.uid in ledger.pod_held:
                return _hints_for_held(ledger.pod_held[pod.uid], need)
            blocks_by_container = ledger.held.get(pod.uid, {})
            for other in pod.all_containers:
                if other.name in blocks_by_container:
                    return _hints_for_held(blocks_by_container[other.name], need)
        family = memory_family(ledger, need, pod=pod.uid) if need else None
        return {} if family is None else dict.fromkeys(need, family)

    def allocate(self, ledger: MemoryLedger, pod: Pod, container: Container | None, *, affinity: Hint) -> MemoryLedger:
        if container is None:
            return self._allocate_pod(ledger, pod, affinity)
        need = self.need(pod, container)
        if not need and not self._places_empty_request(pod, container):
            return ledger
        init = pod.is_ordinary_init(container.name)
        if ledger.blocks(pod.uid, container.name) is not None:
            return ledger.give_again(pod.uid, container.name, init=init)
        if not need and affinity.nodes is None:
            raise ProviderError(_NO_DEFAULT)
        nodes = self._place(ledger, need, pod=pod.uid, affinity=affinity)
        if not need:
            return ledger
        earlier = pod.ended_before(container.name) if pod.init else ()
        return ledger.give(pod.uid, container.name, blocks=_blocks(nodes, need), init=init, earlier=earlier)

    def _places_empty_request(self, pod: Pod, container: Container | None) -> bool:
        """Return whether the kubelet places a container of a pod placed as a whole that requests no memory."""
        return (
            not self.settings.release.skips_empty_memory_requests
            and self.settings.pod_level_managers
            and self.settings.policy is MemoryPolicy.STATIC
            and container is not None
            and pod.has_pod_level_resources
            and pod.qos is QoS.GUARANTEED
        )

    def _allocate_pod(self, ledger: MemoryLedger, pod: Pod, affinity: Hint) -> MemoryLedger:
        """Allocate pod-level memory as a whole: containers with requests get their share, all others share the rest."""
        budget = self.need(pod, None)
        keeps = self.settings.release.restores_pods or not self.settings.kubelet_faults
        has_pod_blocks = keeps and pod.uid in ledger.pod_held
        if not budget or not pod.has_pod_level_resources or has_pod_blocks:
            return ledger
        problem = _empty_shared_pool(pod, budget)
        if problem:
            raise ProviderError(problem, reason=EMPTY_POD_SHARED_POOL)
        nodes = self._place(ledger, budget, pod=pod.uid, affinity=affinity)
        shares = {name: _blocks(nodes, sizes, zeros=False) for name, sizes in _shares(pod, budget).items()}
        return ledger.give_pod(pod.uid, _blocks(nodes, budget), containers=shares)

    def start_container(self, ledger: MemoryLedger, pod: Pod, container: Container) -> MemoryLedger:
        """Release the memory of the ordinary init containers before *container*, which have ended."""
        return ledger.release(pod.uid, *pod.ended_before(container.name))

    def release(self, ledger: MemoryLedger, uid: str) -> MemoryLedger:
        ledger = ledger.release(uid, *ledger.held[uid]) if uid in ledger.held else ledger
        return ledger.without_reusable() if ledger.last_pod == uid else ledger

    def _place(self, ledger: MemoryLedger, need: Sizes, *, pod: str, affinity: Hint) -> NodeSet:
        """Return the nodes of *affinity* if they have enough free, else the best superset of them."""
        nodes = affinity.nodes
        if nodes is None:
            return _best(ledger, need, pod=pod, start=affinity)
        single = nodes & nodes - 1 == 0
        splits_group = single and nodes != 0 and not ledger.keeps_groups(nodes)
        if (splits_group and not self.settings.kubelet_faults) or any(
            ledger.free(nodes, type_) < size for type_, size in need.items()
        ):
            return _best(ledger, need, pod=pod, start=affinity)
        if not single and not ledger.keeps_groups(nodes):
            raise ProviderError("[memorymanager] preferred hint violates NUMA node allocation")
        return nodes


def pinned_containers(pod: Pod) -> tuple[str, ...]:
    """Return the containers that count as pinned in a pod placed as a whole: init, and containers with requests."""
    return tuple(container.name for container in (*pod.init, *(other for other in pod.containers if _own(pod, other))))


def _hints_for_held(blocks: tuple[Block, ...], need: Sizes) -> HintsByResource:
    """Return the nodes of the held blocks, if they match the need; else no preference."""
    if len(blocks) != len(need) or any(need.get(block.type) != block.size for block in blocks):
        return None
    return {block.type: HintList.of([Hint(block.nodes, preferred=True)]) for block in blocks}


def _best(ledger: MemoryLedger, need: Sizes, *, pod: str, start: Hint) -> NodeSet:
    """Return the best nodes that contain the nodes of *start*, or the best of all nodes if *start* has none."""
    family = memory_family(ledger, need, pod=pod)
    nodes = family.best(start.nodes or 0) if family else None
    if family is None or nodes is None:
        error_message = "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
        raise ProviderError(_NO_DEFAULT if start.nodes is None else error_message)
    if start.preferred and not family.prefers(nodes):
        kind = "default" if start.nodes is None else "extended"
        raise ProviderError(f"[memorymanager] failed to find the {kind} preferred hint")
    return nodes


def _blocks(nodes: NodeSet, sizes: Sizes, *, zeros: bool = True) -> tuple[Block, ...]:
    ordered_sizes = sorted(sizes.items()) if len(sizes) > 1 else sizes.items()
    return tuple([Block(nodes, type_, size) for type_, size in ordered_sizes if size > 0 or zeros])


def _empty_shared_pool(pod: Pod, budget: Sizes) -> str | None:
    """Return the kubelet's message if containers with requests leave nothing for the others, else ``None``."""
    spent_sizes = dict.fromkeys(budget, 0)
    has_shared = False
    for container in pod.all_containers:
        sizes = _own(pod, container)
        lasting = not pod.is_ordinary_init(container.name)
        if sizes and lasting:
            spent_sizes = {type_: size + sizes.get(type_, 0) for type_, size in spent_sizes.items()}
        elif lasting:
            has_shared = True
        elif not sizes and (type_ := _used_up(spent_sizes, budget)):
            return f"pod rejected, pod has shared init containers but no {type_} available for them"
    if has_shared and (type_ := _used_up(spent_sizes, budget)):
        return (
            f"pod rejected, sum of exclusive container {type_} requests equals pod budget, "
            "leaving no memory for shared containers"
        )
    return None


def _used_up(spent_sizes: Sizes, budget: Sizes) -> str | None:
    return next((type_ for type_ in sorted(budget) if spent_sizes[type_] >= budget[type_]), None)


def _shares(pod: Pod, budget: Sizes) -> dict[str, Sizes]:
    """Return each container's share of a pod placed as a whole: its requests, or the rest shared by the others."""
    shares: dict[str, Sizes] = {}
    pool = dict(budget)
    for container in pod.all_containers:
        sizes = _own(pod, container)
        ordinary_init = pod.is_ordinary_init(container.name)
        if not ordinary_init:
            pool = {type_: max(0, size - sizes.get(type_, 0)) for type_, size in pool.items()}
        # An ordinary init container runs before the containers, beside the sidecars started so far.
        shares[container.name] = pool if not sizes and ordinary_init else sizes
    return {name: share or pool for name, share in shares.items()}


def _own(pod: Pod, container: Container) -> Sizes:
    return demand.memory(pod, container, pod_level_managers=True)
