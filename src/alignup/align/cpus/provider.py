"""The CPU provider: exclusive CPUs for containers of Guaranteed pods that request whole CPUs.

The CPUs of an ordinary init container are reusable by the containers that run after it, but only as long as its pod is
the last one handled.
"""

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Self

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.selection import DistributedSelection, PackedSelection
from alignup.align.errors import ProviderError, SettingsError, StateError
from alignup.align.hint import AmountFamily, Hint, HintList, HintsByResource, Need, Provider
from alignup.align.machine import KubeletView
from alignup.align.reason_codes import EMPTY_POD_SHARED_POOL, SMT_ALIGNMENT
from alignup.align.release import NEWEST, Release
from alignup.align.settings import FeatureGates, Policy
from alignup.align.workload import Container, Pod, QoS, demand
from alignup.align.workload.names import CPU

CpuSelection = PackedSelection | DistributedSelection
CpuHints = AmountFamily | HintList

#: The hints for a request that cannot be satisfied.
NO_HINTS = HintList((), preferred=frozenset())
_NOTHING: Mapping[str, CpuSet] = MappingProxyType({})


def create_selection(
    view: KubeletView, options: CpuOptions, release: Release = NEWEST, *, kubelet_faults: bool = False
) -> CpuSelection:
    if options.distribute_cpus_across_numa:
        group = view.cpus_per_core if options.full_pcpus_only else 1
        by_socket = options.align_by_socket and release.distributes_by_socket
        return DistributedSelection(
            view, group=max(group, 1), by_socket=by_socket, release=release, kubelet_faults=kubelet_faults
        )
    return PackedSelection(
        view,
        spread=options.distribute_cpus_across_cores,
        by_cache=options.prefer_align_cpus_by_uncorecache,
        release=release,
        kubelet_faults=kubelet_faults,
    )


def select_reserved_cpus(
    view: KubeletView, options: CpuOptions, *, count: int, explicit: CpuSet = 0, release: Release = NEWEST
) -> CpuSet:
    """Return the *count* CPUs reserved for the system: the *explicit* CPUs, or the CPUs that are selected first."""
    cpus = explicit
    if not cpus:
        # Like the kubelet, report an impossible count as a set of the wrong size.
        with suppress(ProviderError):
            cpus = create_selection(view, options, release).take(view.all_cpus, count)
    if cpus.bit_count() != count:
        raise SettingsError(
            "[cpumanager] unable to reserve the required amount of CPUs "
            f"(size of {bits.show(cpus)} did not equal {count})"
        )
    unknown_cpus = cpus & ~view.all_cpus
    if unknown_cpus:
        raise SettingsError(
            "[cpumanager] unable to build the reserved physical CPUs from the reserved set: "
            f"unknown CPU ID: {next(bits.members(unknown_cpus))}"
        )
    return cpus


class CpuNodes:
    """The NUMA nodes of one machine and their CPUs; with *by_socket*, the nodes of a socket count as one."""

    def __init__(self, view: KubeletView, *, by_socket: bool) -> None:
        self._cpus = view.node_cpus
        #: the number of CPUs of the largest node, of the two largest, and so on
        self._largest = tuple(accumulate(sorted((cpus.bit_count() for cpus in self._cpus.values()), reverse=True)))
        self._sockets = tuple(view.socket_cpus.values()) if by_socket else ()
        self._nodes_of_socket = tuple(map(self.touched, self._sockets))
        self._nodes_per_socket = view.num_nodes // max(view.num_sockets, 1)

    def touched(self, cpus: CpuSet) -> NodeSet:
        return bits.of(node for node, node_cpus in self._cpus.items() if node_cpus & cpus)

    def near(self, nodes: NodeSet) -> CpuSet:
        """Return the CPUs of *nodes*; with sockets, of every socket they touch."""
        if nodes and nodes & nodes - 1 == 0:  # one node, the usual case
            cpus = self._cpus.get(nodes.bit_length() - 1, 0)
        else:
            cpus = bits.union(node_cpus for node, node_cpus in self._cpus.items() if nodes >> node & 1)
        return bits.union(socket for socket in self._sockets if socket & cpus) if self._sockets else cpus

    def count(self, cpus: CpuSet) -> dict[int, int]:
        return {node: (cpus & node_cpus).bit_count() for node, node_cpus in self._cpus.items()}

    def hints(self, request: int, *, free: Mapping[int, int], reusable: CpuSet = 0) -> AmountFamily:
        """Return hints for *request* CPUs; as in the kubelet, a CPU both *reusable* and *free* counts twice."""
        width = min(bisect_left(self._largest, request) + 1, len(self._largest))
        by_socket = bool(self._sockets) and self._nodes_per_socket > 0
        return AmountFamily(
            free,
            request - reusable.bit_count(),
            preferred_width=width,
            required=self.touched(reusable) if reusable else 0,
            sockets=self._nodes_of_socket if by_socket else (),
            preferred_sockets=-(-width // self._nodes_per_socket) if by_socket else 0,
        )


@dataclass(frozen=True, kw_only=True)
class CpuProvider(Provider[CpuLedger]):
    view: KubeletView
    policy: CpuPolicy
    options: CpuOptions = field(default_factory=CpuOptions)
    reserved: CpuSet = 0  #: never owned by containers
    #: whether pod-level resources are allocated as a whole (feature gate PodLevelResourceManagers)
    pod_level: bool = False
    #: copy defects of the kubelet: a pod with pod-level resources that is admitted again is rejected, or is placed
    #: again and loses its CPUs (here it keeps them); a start fails if no shared CPU is left (here it does not); on
    #: uneven machines CPUs are taken that are not free; CPUs come from other NUMA nodes than the chosen ones
    kubelet_faults: bool = False
    kubelet_release: Release = NEWEST
    allocatable: CpuSet = field(init=False)  #: the CPUs that containers can own; none under policy none
    _selection: CpuSelection = field(init=False, compare=False, repr=False)
    _nodes: CpuNodes = field(init=False, compare=False, repr=False)

    name = CpuLedger.PROVIDER

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", CpuPolicy(self.policy))
        allocatable = 0 if self.policy is CpuPolicy.NONE else self.view.all_cpus & ~self.reserved
        object.__setattr__(self, "allocatable", allocatable)
        selection = create_selection(self.view, self.options, self.kubelet_release, kubelet_faults=self.kubelet_faults)
        object.__setattr__(self, "_selection", selection)
        object.__setattr__(self, "_nodes", CpuNodes(self.view, by_socket=self.options.align_by_socket))

    @classmethod
    def create(
        cls,
        view: KubeletView,
        settings: CpuSettings,
        *,
        topology: Policy,
        gates: FeatureGates,
        kubelet_faults: bool = False,
    ) -> Self:
        """Return the provider a kubelet starts with under these settings and this topology manager policy."""
        if CpuPolicy(settings.policy) is CpuPolicy.NONE:
            settings.check_none()
            return cls(view=view, policy=CpuPolicy.NONE, kubelet_release=gates.release)
        count = settings.reserved_count(gates.release)
        try:
            options = CpuOptions.parse(settings.options, gates=gates)
            options.check_machine(topology, sockets=view.num_sockets, nodes=view.num_nodes)
            reserved_cpus = select_reserved_cpus(
                view, options, count=count, explicit=settings.explicit, release=gates.release
            )
        except SettingsError as error:
            raise SettingsError(f"new static policy error: {error}") from None
        return cls(
            view=view,
            policy=CpuPolicy.STATIC,
            options=options,
            reserved=reserved_cpus,
            pod_level=gates.on("PodLevelResourceManagers") and gates.on("PodLevelResources"),
            kubelet_faults=kubelet_faults,
            kubelet_release=gates.release,
        )

    @cached_property
    def reserved_cores(self) -> CpuSet:
        return bits.union(core for core in self.view.core_cpus.values() if core & self.reserved)

    def initial_ledger(self) -> CpuLedger:
        return self.restore_ledger()

    def restore_ledger(
        self,
        shared: CpuSet = 0,
        held: Mapping[str, Mapping[str, CpuSet]] | None = None,
        *,
        pod_held: Mapping[str, CpuSet] | None = None,
    ) -> CpuLedger:
        """Return the ledger for a stored assignment; ``StateError`` if it does not match machine and settings."""
        held = {uid: dict(containers) for uid, containers in (held or {}).items()}
        pod_held = dict(pod_held or {}) if self.pod_level else {}
        if self.policy is CpuPolicy.STATIC:
            shared = self._check_stored(shared, held, pod_held)
        return CpuLedger(
            node_cpus=self.view.node_cpus, reserved=self.reserved, shared=shared, held=held, pod_held=pod_held
        )

    def exclusive_cpus(self, pod: Pod, container: Container | None = None) -> int:
        if self.policy is CpuPolicy.NONE or (pod.has_pod_level_resources and not self.pod_level):
            return 0
        if container is not None and not pod.has_pod_level_resources:  # the usual case
            return container.resources.whole_cpus if pod.qos is QoS.GUARANTEED else 0
        return demand.exclusive_cpus(pod, container, pod_level_managers=self.pod_level)

    def needs(self, ledger: CpuLedger, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        count = self.exclusive_cpus(pod, container)
        return {CPU: Need(count, ledger.free)} if count else {}

    def allocated_share(self, ledger: CpuLedger, resource: str, nodes: NodeSet) -> tuple[int, int]:
        del resource
        cpus = self.allocatable & bits.union(self.view.node_cpus.get(node, 0) for node in bits.members(nodes))
        return (cpus & ~ledger.shared).bit_count(), cpus.bit_count()

    def hints(self, ledger: CpuLedger, pod: Pod, container: Container | None) -> HintsByResource:
        count = self.exclusive_cpus(pod, container)
        if not count:
            return None
        if container is None:
            return {CPU: self._pod_hints(ledger, pod, count)}
        owned_cpus = ledger.holds(pod.uid, container.name)
        if owned_cpus is not None:
            return {CPU: self._hints_for_owned(owned_cpus, count)}
        return {CPU: self._nodes.hints(count, free=ledger.free, reusable=ledger.reusable_by(pod.uid))}

    def _pod_hints(self, ledger: CpuLedger, pod: Pod, count: int) -> CpuHints:
        if self._restores(ledger, pod):
            if not self._is_stale(ledger, pod):
                return self._hints_for_owned(ledger.pod_held[pod.uid], count)
            ledger = ledger.forget(pod.uid)
        if self.pod_level and pod.has_pod_level_resources and self._empty_shared_pool(pod):
            return NO_HINTS
        # The CPUs allocated to the pod as a whole, which it keeps; the kubelet does not check.
        owned_cpus = 0 if self.kubelet_faults else ledger.pod_held.get(pod.uid, 0)
        if owned_cpus:
            return self._hints_for_owned(owned_cpus, count)
        for container in pod.all_containers:
            container_cpus = ledger.holds(pod.uid, container.name)
            if container_cpus is None:
                continue
            if container_cpus.bit_count() != self.exclusive_cpus(pod, container):
                return NO_HINTS
            owned_cpus |= container_cpus
        if owned_cpus.bit_count() == count:
            return self._hints_for_owned(owned_cpus, count)
        return self._nodes.hints(count, free=ledger.free, reusable=ledger.reusable_by(pod.uid) | owned_cpus)

    def allocate(self, ledger: CpuLedger, pod: Pod, container: Container | None, *, affinity: Hint) -> CpuLedger:
        if container is None:
            return self._allocate_pod(ledger, pod, affinity.nodes)
        count = self.exclusive_cpus(pod, container)
        if not count:
            return ledger
        cpus = ledger.holds(pod.uid, container.name)
        reusable = ledger.reusable_by(pod.uid)
        ends = pod.is_ordinary_init(container.name)
        if self.options.full_pcpus_only and not (cpus is not None and self.kubelet_release.keeps_partial_cores):
            self._check_smt(ledger, count)
        if cpus is not None:
            return ledger.with_reusable(pod.uid, reusable | cpus if ends else reusable & ~cpus)
        # Released CPUs can belong to another pod by now; the kubelet does not check.
        again = reusable if self.kubelet_faults or not reusable else reusable & ledger.owned(pod.uid)
        cpus = self._select(ledger.available | again, count, affinity=affinity.nodes)
        rest = reusable | cpus if ends else reusable & ~cpus
        checked = not self.kubelet_faults
        return ledger.give(pod.uid, container.name, cpus=cpus, reusable=rest, checked=checked)

    def _allocate_pod(self, ledger: CpuLedger, pod: Pod, affinity: NodeSet | None) -> CpuLedger:
        """Allocate pod-level CPUs as a whole, and divide them among the containers."""
        count = self.exclusive_cpus(pod)
        as_whole = self.pod_level and pod.has_pod_level_resources
        if not count or not as_whole:
            return ledger
        if self._restores(ledger, pod):
            if not self._is_stale(ledger, pod):
                return self._restore_pod(ledger, pod)
            ledger = ledger.forget(pod.uid)
        elif not self.kubelet_faults and ledger.owned(pod.uid):  # also what its containers got one by one
            return ledger
        problem = self._empty_shared_pool(pod)
        if problem:
            raise ProviderError(problem, reason=EMPTY_POD_SHARED_POOL)
        if self.options.full_pcpus_only:
            self._check_smt(ledger, count)
        cpus = self._select(ledger.available, count, affinity=affinity)
        try:
            parts = self._divide(pod, cpus)
        except ProviderError as error:
            if self.kubelet_release.restores_pods:
                error.residue = ledger
            elif self.kubelet_faults:
                error.residue = ledger.give_pod(pod.uid, cpus, containers={}, checked=False)
            raise
        return ledger.give_pod(pod.uid, cpus, containers=parts, checked=not self.kubelet_faults)

    def _restores(self, ledger: CpuLedger, pod: Pod) -> bool:
        """Return whether the CPUs that are stored for the pod as a whole count when it is admitted again."""
        return self.kubelet_release.restores_pods and pod.uid in ledger.pod_held and pod.has_pod_level_resources

    def _is_stale(self, ledger: CpuLedger, pod: Pod) -> bool:
        """Return whether the CPUs of the pod are partly shared, or a container has some and one before it has none."""
        containers = ledger.held.get(pod.uid, {})
        missing_flags = [container.name not in containers for container in pod.all_containers]
        return bool(ledger.pod_held[pod.uid] & ledger.shared) or missing_flags != sorted(missing_flags)

    def _restore_pod(self, ledger: CpuLedger, pod: Pod) -> CpuLedger:
        """Let the pod keep its CPUs; containers without any get theirs. If these are too few, all are released."""
        try:
            parts = self._divide(pod, ledger.pod_held[pod.uid], stored_cpus=ledger.held.get(pod.uid, {}))
        except ProviderError as error:
            error.residue = ledger.forget(pod.uid)
            raise
        return ledger.with_parts(pod.uid, parts)

    def release(self, ledger: CpuLedger, uid: str) -> CpuLedger:
        ledger = ledger.take_back_all(uid)
        return replace(ledger, reusable=None) if ledger.reusable and ledger.reusable[0] == uid else ledger

    def _check_stored(
        self, shared: CpuSet, held: Mapping[str, Mapping[str, CpuSet]], pod_held: Mapping[str, CpuSet]
    ) -> CpuSet:
        """Return the shared CPUs to start with; ``StateError`` if the stored sets are inconsistent."""
        strict = self.options.strict_cpu_reservation
        everything = self.view.all_cpus & ~(self.reserved if strict else 0)
        if not shared and not held:
            return everything
        must_share = not strict and self.reserved
        if not shared and (must_share or self.kubelet_faults):
            raise StateError("default cpuset cannot be empty")
        reserved_shared = self.reserved & shared
        if strict and reserved_shared:
            raise StateError(
                f'some of strictly reserved cpus: "{bits.show(reserved_shared)}" '
                f'are present in defaultCpuSet: "{bits.show(shared)}"'
            )
        if not strict and reserved_shared != self.reserved:
            raise StateError(
                f'not all reserved cpus: "{bits.show(self.reserved)}" '
                f'are present in defaultCpuSet: "{bits.show(shared)}"'
            )
        cpus_of_file = shared | bits.union(pod_held.values())
        for uid, containers in held.items():
            for name, cpus in containers.items():
                if cpus & shared:
                    raise StateError(
                        f'pod: {uid}, container: {name} cpuset: "{bits.show(cpus)}" '
                        f'overlaps with default cpuset "{bits.show(shared)}"'
                    )
                cpus_of_file |= cpus
        if cpus_of_file != everything:
            raise StateError(
                f'current set of available CPUs "{bits.show(everything)}" '
                f'doesn\'t match with CPUs in state "{bits.show(cpus_of_file)}"'
            )
        return shared

    def _hints_for_owned(self, owned_cpus: CpuSet, count: int) -> CpuHints:
        """Return hints for CPUs that are owned already: their own nodes, if their number equals the request."""
        return (
            self._nodes.hints(count, free=self._nodes.count(owned_cpus))
            if owned_cpus.bit_count() == count
            else NO_HINTS
        )

    def _check_smt(self, ledger: CpuLedger, count: int) -> None:
        """Raise if *count* CPUs are not whole cores, or too few whole cores are free."""
        size = max(self.view.cpus_per_core, 1)
        if count % size:
            raise ProviderError(
                f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {size}",
                reason=SMT_ALIGNMENT,
            )
        free = (ledger.shared & ~self.reserved_cores).bit_count()
        if count > free:
            raise ProviderError(
                f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {free}, "
                f"requested CPUs = {count}, CPUs per core = {size}",
                reason=SMT_ALIGNMENT,
            )

    def _select(self, pool: CpuSet, count: int, *, affinity: NodeSet | None) -> CpuSet:
        """Select on the nodes of *affinity* first, then anywhere."""
        if affinity is None:
            return self._selection.take(pool, count)
        near_cpus = pool & self._nodes.near(affinity)
        near = min(count, near_cpus.bit_count())
        if isinstance(self._selection, DistributedSelection):
            first = self._selection.take(near_cpus, near, width=affinity.bit_count())
        else:
            first = self._selection.take(near_cpus, near)
        return first if near == count else first | self._selection.take(pool & ~first, count - near)

    def _empty_shared_pool(self, pod: Pod) -> str:
        """Return the kubelet's message if no CPUs are left for shared containers; empty if some are."""
        budget = self.exclusive_cpus(pod)
        exclusive, has_shared = 0, False
        for container in pod.all_containers:
            count = self.exclusive_cpus(pod, container)
            if not pod.is_ordinary_init(container.name):
                exclusive += count
                has_shared |= not count
            elif not count and exclusive >= budget:
                return "pod rejected, pod has shared init containers but no cpus available for them"
        if has_shared and exclusive >= budget:
            return (
                "pod rejected, sum of exclusive container cpu requests equals pod budget, "
                "leaving no cpus for shared containers"
            )
        return ""

    def _divide(self, pod: Pod, cpus: CpuSet, stored_cpus: Mapping[str, CpuSet] = _NOTHING) -> dict[str, CpuSet]:
        """Divide the pod's CPUs among its containers. Some containers may have CPUs already (*stored_cpus*).

        Sidecars keep theirs. Other init containers run one after the other on the rest at that time, then the
        containers run side by side on the rest. Containers without exclusive CPUs share what the others leave.
        """
        parts: dict[str, CpuSet | None] = {}
        pool = cpus
        for container in pod.all_containers:
            count = self.exclusive_cpus(pod, container)
            part = stored_cpus.get(container.name)
            if part is None and count:
                part = self._selection.take(pool, count)
            ordinary_init = pod.is_ordinary_init(container.name)
            if count and not ordinary_init:
                pool &= ~(part or 0)
            parts[container.name] = pool if part is None and ordinary_init else part
        return {name: pool if part is None else part for name, part in parts.items()}
