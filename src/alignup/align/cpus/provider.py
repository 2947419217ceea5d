"""The CPU provider: exclusive CPUs for containers of Guaranteed pods that ask for whole ones.

All CPUs are shared until a container owns some. The provider says where CPUs for a container (or a whole pod) could
come from, takes them there once the topology manager has decided, and gives them back. It holds no state: each step
takes a ledger and returns another one.

The surprising rule: an ordinary init container's CPUs are offered again to the containers that run after it has ended,
but only while the pod is the one handled last.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.cpus.distributed import DistributedSelection
from alignup.align.cpus.hints import NO_HINTS, CpuHints, CpuNodes
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.packed import CpuSelection, PackedSelection
from alignup.align.errors import ProviderError, SettingsError, StateError
from alignup.align.lazy import lazy
from alignup.align.machine import KubeletView
from alignup.align.settings import FeatureGates, Policy
from alignup.align.workload import Container, Pod
from alignup.align.workload.demand import container_cpus, pod_cpus


def create_selection(view: KubeletView, options: CpuOptions) -> CpuSelection:
    """How CPUs are chosen on this machine under these options."""
    if options.distribute_cpus_across_numa:
        group = view.cpus_per_core if options.full_pcpus_only else 1
        return DistributedSelection(view, group=max(group, 1), by_socket=options.align_by_socket)
    return PackedSelection(
        view,
        spread=options.distribute_cpus_across_cores,
        by_cache=options.prefer_align_cpus_by_uncorecache,
    )


def select_reserved_cpus(view: KubeletView, options: CpuOptions, *, count: int, explicit: CpuSet = 0) -> CpuSet:
    """The *count* CPUs kept from containers: the *explicit* ones, or those that would be taken first."""
    reserved = explicit
    if not reserved:
        # An impossible number is reported as a set of the wrong size, as the kubelet does.
        with suppress(ProviderError):
            reserved = create_selection(view, options).take(view.all_cpus, count)
    if reserved.bit_count() != count:
        raise SettingsError(
            "[cpumanager] unable to reserve the required amount of CPUs "
            f"(size of {bits.show(reserved)} did not equal {count})"
        )
    unknown = reserved & ~view.all_cpus
    if unknown:
        raise SettingsError(
            "[cpumanager] unable to build the reserved physical CPUs from the reserved set: "
            f"unknown CPU ID: {next(bits.members(unknown))}"
        )
    return reserved


@dataclass(frozen=True, kw_only=True)
class CpuProvider:
    """The CPU manager of one machine under one configuration."""

    view: KubeletView
    policy: CpuPolicy
    options: CpuOptions = field(default_factory=CpuOptions)
    reserved: CpuSet = 0  #: kept from containers
    #: whether resources of a pod as a whole are given out as one piece (gate PodLevelResourceManagers)
    pod_level: bool = False
    #: copy two faults of the kubelet: admitted again, a pod placed as one piece is refused, or is placed once more
    #: and loses the CPUs it had (here it stays); and a start fails when no CPU is left to be shared (here it does not)
    kubelet_faults: bool = False

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
        """The provider a kubelet with these settings would start with, beside that policy of the topology manager."""
        if CpuPolicy.parse(settings.policy) is CpuPolicy.NONE:
            settings.check_none()
            return cls(view=view, policy=CpuPolicy.NONE)
        count = settings.reserved_count()
        try:
            options = CpuOptions.parse(settings.options, gates=gates)
            options.check_machine(topology, sockets=view.num_sockets, nodes=view.num_nodes)
            reserved = select_reserved_cpus(view, options, count=count, explicit=settings.explicit)
        except SettingsError as error:
            raise SettingsError(f"new static policy error: {error}") from None
        return cls(
            view=view,
            policy=CpuPolicy.STATIC,
            options=options,
            reserved=reserved,
            pod_level=gates.on("PodLevelResourceManagers") and gates.on("PodLevelResources"),
            kubelet_faults=kubelet_faults,
        )

    @lazy
    def allocatable(self) -> CpuSet:
        """The CPUs that containers could own; none under policy none."""
        return 0 if self.policy is CpuPolicy.NONE else self.view.all_cpus & ~self.reserved

    @lazy
    def reserved_cores(self) -> CpuSet:
        """All CPUs of the cores that have reserved ones."""
        return bits.union(core for core in self.view.core_cpus.values() if core & self.reserved)

    @lazy
    def _selection(self) -> CpuSelection:
        return create_selection(self.view, self.options)

    @lazy
    def _nodes(self) -> CpuNodes:
        return CpuNodes(self.view, by_socket=self.options.align_by_socket)

    def start(
        self,
        shared: CpuSet = 0,
        held: Mapping[str, Mapping[str, CpuSet]] | None = None,
        *,
        pod_held: Mapping[str, CpuSet] | None = None,
    ) -> CpuLedger:
        """A ledger to begin with: all shared, or a stored assignment that must belong to this machine and settings."""
        held = {uid: dict(containers) for uid, containers in (held or {}).items()}
        pod_held = dict(pod_held or {}) if self.pod_level else {}
        if self.policy is CpuPolicy.STATIC:
            shared = self._checked(shared, held, pod_held)
        return CpuLedger(
            node_cpus=self.view.node_cpus, reserved=self.reserved, shared=shared, held=held, pod_held=pod_held
        )

    def exclusive_cpus(self, pod: Pod, container: Container | None = None) -> int:
        """How many CPUs the container, or the pod as a whole, is to own."""
        if self.policy is CpuPolicy.NONE or (pod.has_pod_level_resources and not self.pod_level):
            return 0
        if container is None:
            return pod_cpus(pod, pod_level_managers=self.pod_level)
        return container_cpus(pod, container, pod_level_managers=self.pod_level)

    def hints(self, ledger: CpuLedger, pod: Pod, *, container: Container) -> CpuHints | None:
        """Where the CPUs of a container could come from; ``None`` when it needs none of its own."""
        count = self.exclusive_cpus(pod, container)
        if not count:
            return None
        owned = ledger.holds(pod.uid, container.name)
        if owned is None:
            return self._nodes.hints(count, free=ledger.free, reusable=ledger.reusable_by(pod.uid))
        return self._regenerated(owned, count)

    def pod_hints(self, ledger: CpuLedger, pod: Pod) -> CpuHints | None:
        """Where the CPUs of a whole pod could come from; ``None`` when it needs none of its own."""
        count = self.exclusive_cpus(pod)
        if not count:
            return None
        if self._as_one(pod) and self._no_shared_pool(pod):
            return NO_HINTS
        owned = self._placed(ledger, pod)
        if owned:
            return self._regenerated(owned, count)
        for container in pod.everyone:
            own = ledger.holds(pod.uid, container.name)
            if own is None:
                continue
            if own.bit_count() != self.exclusive_cpus(pod, container):
                return NO_HINTS
            owned |= own
        if owned.bit_count() == count:
            return self._regenerated(owned, count)
        return self._nodes.hints(count, free=ledger.free, reusable=ledger.reusable_by(pod.uid) | owned)

    def allocate(
        self, ledger: CpuLedger, pod: Pod, *, container: Container, affinity: NodeSet | None
    ) -> tuple[CpuLedger, CpuSet]:
        """Give a container its CPUs, of *affinity*'s nodes as far as they reach; none when it needs none of its own."""
        count = self.exclusive_cpus(pod, container)
        if not count:
            return ledger, 0
        cpus = ledger.holds(pod.uid, container.name)
        reusable = ledger.reusable_by(pod.uid)
        ends = any(container.name == init.name and not init.restartable for init in pod.init)
        if cpus is not None:
            return ledger.with_reusable(pod.uid, reusable | cpus if ends else reusable & ~cpus), cpus
        self._check_smt(ledger, count)
        # What was given back may be another pod's by now; the kubelet does not look.
        again = reusable & ~ledger.owned_by_others(pod.uid) if reusable else 0
        cpus = self._choose(ledger.available | again, count, affinity=affinity)
        left = reusable | cpus if ends else reusable & ~cpus
        return ledger.give(pod.uid, container.name, cpus=cpus, reusable=left), cpus

    def allocate_pod(self, ledger: CpuLedger, pod: Pod, *, affinity: NodeSet | None) -> tuple[CpuLedger, CpuSet]:
        """Give a pod with resources of its own all its CPUs as one piece, and each container its part of it."""
        count = self.exclusive_cpus(pod)
        if not count or not self._as_one(pod):
            return ledger, 0
        placed = self._placed(ledger, pod)
        if placed:
            return ledger, placed
        problem = self._no_shared_pool(pod)
        if problem:
            raise ProviderError(problem, reason="EmptyPodSharedPoolError")
        self._check_smt(ledger, count)
        cpus = self._choose(ledger.available, count, affinity=affinity)
        return ledger.give_pod(pod.uid, cpus, containers=self._divide(pod, cpus)), cpus

    def release(self, ledger: CpuLedger, uid: str, *, container: str | None = None) -> CpuLedger:
        """Take back what a container owns, or all containers of a pod."""
        names = tuple(ledger.held.get(uid, {})) if container is None else (container,)
        for name in names:
            ledger = ledger.take_back(uid, name)
        return ledger

    def _checked(
        self, shared: CpuSet, held: Mapping[str, Mapping[str, CpuSet]], pod_held: Mapping[str, CpuSet]
    ) -> CpuSet:
        """The shared CPUs to start with; what is stored must add up."""
        strict = self.options.strict_cpu_reservation
        everything = self.view.all_cpus & ~(self.reserved if strict else 0)
        if not shared and not held:
            return everything
        must_share = not strict and self.reserved
        if not shared and (must_share or self.kubelet_faults):
            raise StateError("default cpuset cannot be empty")
        clash = self.reserved & shared
        if strict and clash:
            raise StateError(
                f'some of strictly reserved cpus: "{bits.show(clash)}" '
                f'are present in defaultCpuSet: "{bits.show(shared)}"'
            )
        if not strict and clash != self.reserved:
            raise StateError(
                f'not all reserved cpus: "{bits.show(self.reserved)}" '
                f'are present in defaultCpuSet: "{bits.show(shared)}"'
            )
        for uid, containers in held.items():
            for name, cpus in containers.items():
                if cpus & shared:
                    raise StateError(
                        f'pod: {uid}, container: {name} cpuset: "{bits.show(cpus)}" '
                        f'overlaps with default cpuset "{bits.show(shared)}"'
                    )
        known = shared | bits.union(pod_held.values())
        for containers in held.values():
            known |= bits.union(containers.values())
        if known != everything:
            raise StateError(
                f'current set of available CPUs "{bits.show(everything)}" '
                f'doesn\'t match with CPUs in state "{bits.show(known)}"'
            )
        return shared

    def _as_one(self, pod: Pod) -> bool:
        return self.pod_level and pod.has_pod_level_resources

    def _placed(self, ledger: CpuLedger, pod: Pod) -> CpuSet:
        """What a pod was given as one piece and keeps; the kubelet does not look."""
        return 0 if self.kubelet_faults else ledger.pod_held.get(pod.uid, 0)

    def _regenerated(self, owned: CpuSet, count: int) -> CpuHints:
        """Hints for CPUs that are owned already: just where they are, if they are as many as are asked for."""
        return self._nodes.hints(count, free=self._nodes.count(owned)) if owned.bit_count() == count else NO_HINTS

    def _check_smt(self, ledger: CpuLedger, count: int) -> None:
        """Refuse what would not take whole cores, if only whole ones may be taken."""
        if not self.options.full_pcpus_only:
            return
        size = max(self.view.cpus_per_core, 1)
        if count % size:
            raise ProviderError(
                f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {size}",
                reason="SMTAlignmentError",
            )
        free = (ledger.shared & ~self.reserved_cores).bit_count()
        if count > free:
            raise ProviderError(
                f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {free}, "
                f"requested CPUs = {count}, CPUs per core = {size}",
                reason="SMTAlignmentError",
            )

    def _choose(self, pool: CpuSet, count: int, *, affinity: NodeSet | None) -> CpuSet:
        """First of the nodes wished for, then from anywhere."""
        if affinity is None:
            return self._selection.take(pool, count)
        aligned = pool & self._nodes.near(affinity)
        first = self._selection.take(aligned, min(count, aligned.bit_count()))
        return first | self._selection.take(pool & ~first, count - first.bit_count())

    def _no_shared_pool(self, pod: Pod) -> str:
        """Why containers that share would be left without CPUs if the others got theirs; empty when they are not."""
        budget = self.exclusive_cpus(pod)
        exclusive, someone_shares = 0, False
        for container in pod.init:
            count = self.exclusive_cpus(pod, container)
            if container.restartable:
                exclusive += count
                someone_shares |= not count
            elif not count and exclusive >= budget:
                return "pod rejected, pod has shared init containers but no cpus available for them"
        for container in pod.containers:
            count = self.exclusive_cpus(pod, container)
            exclusive += count
            someone_shares |= not count
        if someone_shares and exclusive >= budget:
            return (
                "pod rejected, sum of exclusive container cpu requests equals pod budget, "
                "leaving no cpus for shared containers"
            )
        return ""

    def _divide(self, pod: Pod, cpus: CpuSet) -> dict[str, CpuSet]:
        """What of the pod's CPUs each container gets.

        Sidecars keep theirs; the other init containers run one after the other on what is left then, and so do the
        containers in the end, beside each other. Who asks for no CPUs of its own shares what nobody else of these has.
        """
        parts: dict[str, CpuSet | None] = {}
        pool = cpus
        for container in pod.init:
            count = self.exclusive_cpus(pod, container)
            part = self._selection.take(pool, count) if count else None
            if container.restartable:
                pool &= ~(part or 0)
            parts[container.name] = pool if part is None and not container.restartable else part
        for container in pod.containers:
            count = self.exclusive_cpus(pod, container)
            part = self._selection.take(pool, count) if count else None
            pool &= ~(part or 0)
            parts[container.name] = part
        return {name: pool if part is None else part for name, part in parts.items()}
