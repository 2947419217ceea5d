"""The memory provider: memory and huge pages of Guaranteed pods, on NUMA nodes of their own.

It is asked twice: for hints, on which nodes a container or a whole pod could be placed, and later to allocate, when
the policy has chosen nodes. Nothing here is remembered but the ledger, which is passed in and handed back changed, so
a refused request leaves no trace.

The surprising rules: init containers lend their memory to the containers after them, but only on exactly the same
nodes; and what cannot be placed at all gives no hint, which reads as "anywhere", and is refused only when it comes to
allocating.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from alignup.align.bits import NodeSet, quote
from alignup.align.errors import ProviderError, SettingsError
from alignup.align.hint import Hint, HintList, HintsByResource
from alignup.align.memory.hints import memory_family
from alignup.align.memory.ledger import Block, MemoryLedger, Sizes
from alignup.align.settings import FeatureGates
from alignup.align.workload import Container, Pod, QoS, demand


class MemoryPolicy(StrEnum):
    """Whether memory is given out at all."""

    NONE = "None"
    STATIC = "Static"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Read ``memoryManagerPolicy``, refusing it as the kubelet does on Linux."""
        if name == "BestEffort":
            raise SettingsError('policy "BestEffort" is not available for platform "linux"')
        if name not in set(cls):
            raise SettingsError(f"unknown policy: {quote(name)}")
        return cls(name)


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """All the memory provider is told."""

    policy: MemoryPolicy = MemoryPolicy.NONE
    pod_level_managers: bool = False  #: pods with resources of their own are given those as one piece; else left alone
    #: copy two faults of the kubelet: one node of a group is given away alone (here the container joins the group), and
    #: a pod placed as one piece is placed, and charged, once more when it is admitted again (here it stays)
    kubelet_faults: bool = False

    @classmethod
    def of_gates(cls, policy: MemoryPolicy, gates: FeatureGates, *, kubelet_faults: bool = False) -> Self:
        """The settings under feature *gates*."""
        both = gates.on("PodLevelResources") and gates.on("PodLevelResourceManagers")
        return cls(policy, pod_level_managers=both, kubelet_faults=kubelet_faults)


def container_need(pod: Pod, container: Container, *, settings: MemorySettings) -> Mapping[str, int]:
    """The bytes of each type a container is to be given; empty when the provider does not handle it."""
    if not _handled(pod, settings):
        return {}
    return demand.container_memory(pod, container, pod_level_managers=settings.pod_level_managers)


def pod_need(pod: Pod, *, settings: MemorySettings) -> Mapping[str, int]:
    """The bytes of each type a whole pod is to be given; empty when the provider does not handle it."""
    if not _handled(pod, settings):
        return {}
    return demand.pod_memory(pod, pod_level_managers=settings.pod_level_managers)


def container_hints(
    ledger: MemoryLedger, pod: Pod, container: Container, *, settings: MemorySettings
) -> HintsByResource:
    """Where *container* could be placed, type by type; ``None``: no opinion, an empty mapping: nowhere."""
    try:
        need = container_need(pod, container, settings=settings)
    except ProviderError:  # said again, and heard, when it comes to allocating
        return None
    if not need:
        return None
    blocks = ledger.blocks(pod.uid, container.name)
    return _hints(ledger, need, pod=pod.uid) if blocks is None else _hints_again(blocks, need)


def pod_hints(ledger: MemoryLedger, pod: Pod, *, settings: MemorySettings) -> HintsByResource:
    """Where the whole of *pod* could be placed, type by type; ``None`` and empty as for a container."""
    try:
        need = pod_need(pod, settings=settings)
    except ProviderError:
        return None
    if not need:
        return None
    if pod.has_pod_level_resources and _unshared(pod, need):
        return dict.fromkeys(need, ())
    held = ledger.held.get(pod.uid, {})
    for container in pod.everyone:
        if container.name in held:
            return _hints_again(held[container.name], need)
    return _hints(ledger, need, pod=pod.uid)


def allocate(
    ledger: MemoryLedger, pod: Pod, container: Container, *, affinity: Hint, settings: MemorySettings
) -> MemoryLedger:
    """The ledger with *container* placed on the nodes of *affinity* or more; a :class:`ProviderError` if it cannot be.

    A container that already has memory keeps it.
    """
    need = container_need(pod, container, settings=settings)
    if not need:
        return ledger
    init = _is_ordinary_init(pod, container)
    if ledger.blocks(pod.uid, container.name) is not None:
        return ledger.give_again(pod.uid, container.name, init=init)
    nodes = _place(ledger, need, pod=pod.uid, affinity=affinity, settings=settings)
    earlier = _init_before(pod, container)
    return ledger.give(pod.uid, container.name, blocks=_blocks(nodes, need), init=init, earlier=earlier)


def allocate_pod(ledger: MemoryLedger, pod: Pod, *, affinity: Hint, settings: MemorySettings) -> MemoryLedger:
    """The ledger with a pod that has resources of its own placed as one piece; a :class:`ProviderError` if not.

    Containers with requests get their own share, all others share what is left. A pod already placed stays as it is.
    """
    budget = pod_need(pod, settings=settings)
    if not budget or not pod.has_pod_level_resources or (pod.uid in ledger.pod_held and not settings.kubelet_faults):
        return ledger
    refusal = _unshared(pod, budget)
    if refusal:
        raise ProviderError(refusal, reason="EmptyPodSharedPoolError")
    nodes = _place(ledger, budget, pod=pod.uid, affinity=affinity, settings=settings)
    shares = {name: _blocks(nodes, sizes, zeros=False) for name, sizes in _shares(pod, budget).items()}
    return ledger.give_pod(pod.uid, _blocks(nodes, budget), containers=shares)


def pinned_containers(pod: Pod) -> tuple[str, ...]:
    """The containers counted as pinned when *pod* is placed as one piece: init containers, and those with requests."""
    return tuple(container.name for container in (*pod.init, *(other for other in pod.containers if _own(pod, other))))


def start_container(ledger: MemoryLedger, pod: Pod, container: Container) -> MemoryLedger:
    """The ledger when *container* starts: ordinary init containers before it are done and give their memory back."""
    for name in _init_before(pod, container):
        ledger = ledger.release(pod.uid, name)
    return ledger


def retain(ledger: MemoryLedger, active: Collection[str]) -> MemoryLedger:
    """The ledger without pods that are not among the *active* ones."""
    for uid in (ledger.held.keys() | ledger.pod_held.keys()) - set(active):
        for name in ledger.held.get(uid, {"": ()}):
            ledger = ledger.release(uid, name)
    return ledger


def nodes_of(ledger: MemoryLedger, pod: str, container: str) -> NodeSet:
    """The nodes a container's memory must come from (its ``cpuset.mems``); empty: any."""
    nodes = 0
    for block in ledger.blocks(pod, container) or ():
        nodes |= block.nodes
    return nodes


def _handled(pod: Pod, settings: MemorySettings) -> bool:
    if settings.policy is MemoryPolicy.NONE or pod.qos is not QoS.GUARANTEED:
        return False
    return settings.pod_level_managers or not pod.has_pod_level_resources


def _hints(ledger: MemoryLedger, need: Sizes, *, pod: str) -> HintsByResource:
    sets = memory_family(ledger, need, pod=pod)
    return {} if sets is None else dict.fromkeys(need, sets)


def _hints_again(blocks: tuple[Block, ...], need: Sizes) -> HintsByResource:
    """The nodes already held, if they are held for just this need; else no opinion."""
    if len(blocks) != len(need) or any(need.get(block.type) != block.size for block in blocks):
        return None
    return {block.type: HintList.of([Hint(block.nodes, preferred=True)]) for block in blocks}


def _place(ledger: MemoryLedger, need: Sizes, *, pod: str, affinity: Hint, settings: MemorySettings) -> NodeSet:
    """The nodes a request goes to: those of *affinity* if they have enough free, else the best that contain them."""
    nodes, preferred = affinity
    if nodes is None:
        return _choose(ledger, need, pod=pod, preferred=preferred)
    alone = nodes & nodes - 1 == 0
    split = alone and nodes != 0 and not ledger.keeps_groups(nodes)
    if (split and not settings.kubelet_faults) or not ledger.has_free(nodes, need):
        return _extend(ledger, need, pod=pod, start=Hint(nodes, preferred))
    if not alone and not ledger.keeps_groups(nodes):
        raise ProviderError("[memorymanager] preferred hint violates NUMA node allocation")
    return nodes


def _choose(ledger: MemoryLedger, need: Sizes, *, pod: str, preferred: bool) -> NodeSet:
    """The best nodes of all."""
    sets = memory_family(ledger, need, pod=pod)
    nodes = sets.best() if sets else None
    if sets is None or nodes is None:
        raise ProviderError(
            "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
        )
    if preferred and not sets.prefers(nodes):
        raise ProviderError("[memorymanager] failed to find the default preferred hint")
    return nodes


def _extend(ledger: MemoryLedger, need: Sizes, *, pod: str, start: Hint) -> NodeSet:
    """The best nodes that contain those of *start*."""
    sets = memory_family(ledger, need, pod=pod)
    nodes = sets.best(start.nodes or 0) if sets else None
    if sets is None or nodes is None:
        raise ProviderError("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
    if start.preferred and not sets.prefers(nodes):
        raise ProviderError("[memorymanager] failed to find the extended preferred hint")
    return nodes


def _blocks(nodes: NodeSet, sizes: Sizes, *, zeros: bool = True) -> tuple[Block, ...]:
    """One block a type, in the order of their names."""
    return tuple([Block(nodes, type_, size) for type_, size in sorted(sizes.items()) if size > 0 or zeros])


def _init_before(pod: Pod, container: Container) -> tuple[str, ...]:
    """The ordinary init containers that have run when *container* starts."""
    names = []
    for init in pod.init:
        if init.name == container.name:
            break
        if not init.restartable:
            names.append(init.name)
    return tuple(names)


def _is_ordinary_init(pod: Pod, container: Container) -> bool:
    return not container.restartable and container.name in [init.name for init in pod.init]


def _unshared(pod: Pod, budget: Sizes) -> str | None:
    """Why a pod is refused whose containers with requests leave nothing for those without; ``None``: it is not."""
    spent = dict.fromkeys(budget, 0)
    someone_shares = False
    for container in pod.everyone:
        own = _own(pod, container)
        lasting = not _is_ordinary_init(pod, container)
        if own and lasting:
            spent = {type_: size + own.get(type_, 0) for type_, size in spent.items()}
        elif lasting:
            someone_shares = True
        elif not own and (type_ := _used_up(spent, budget)):
            return f"pod rejected, pod has shared init containers but no {type_} available for them"
    if someone_shares and (type_ := _used_up(spent, budget)):
        return (
            f"pod rejected, sum of exclusive container {type_} requests equals pod budget, "
            "leaving no memory for shared containers"
        )
    return None


def _used_up(spent: Sizes, budget: Sizes) -> str | None:
    """A type of which nothing is left."""
    return next((type_ for type_ in sorted(budget) if spent[type_] >= budget[type_]), None)


def _shares(pod: Pod, budget: Sizes) -> dict[str, Sizes]:
    """What each container of a pod placed as one piece may use: its own requests, or what is left for all others."""
    shares: dict[str, Sizes] = {}
    pool = dict(budget)
    for container in pod.init:
        shares[container.name] = _own(pod, container)
        if container.restartable:
            pool = _less(pool, shares[container.name])
        elif not shares[container.name]:
            shares[container.name] = pool  # it runs before the containers, beside the sidecars started so far
    for container in pod.containers:
        shares[container.name] = _own(pod, container)
        pool = _less(pool, shares[container.name])
    return {name: own or pool for name, own in shares.items()}


def _own(pod: Pod, container: Container) -> Sizes:
    return demand.container_memory(pod, container, pod_level_managers=True)


def _less(sizes: Sizes, taken: Sizes) -> dict[str, int]:
    return {type_: max(0, size - taken.get(type_, 0)) for type_, size in sizes.items()}
