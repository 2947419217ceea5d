"""Who holds what on one machine.

A ledger never changes: giving and taking back return a new one. Undoing a decision is keeping the ledger from before
it, a refused pod leaves no trace because nothing was written, and deciding stays pure.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import StateError


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLedger:
    """Which container owns which CPUs; all others are shared.

    Every CPU is shared, owned or lost. Containers of one pod may own the same CPU (an init container and the one that
    runs after it); containers of different pods never do.
    """

    node_cpus: Mapping[int, CpuSet]  #: NUMA node → its CPUs
    reserved: CpuSet  #: never owned by a container
    shared: CpuSet  #: owned by nobody; the reserved ones are among them unless they are kept apart strictly
    held: Mapping[str, Mapping[str, CpuSet]] = field(default_factory=dict)  #: pod uid → container → its CPUs
    pod_held: Mapping[str, CpuSet] = field(default_factory=dict)  #: pod uid → the CPUs the pod was given as one piece
    #: the pod handled last and what of its init containers' CPUs its next container may use again; only one is kept
    reusable: tuple[str, CpuSet] | None = None
    lost: CpuSet = 0  #: owned by a pod that was given others in their place; only a second ``give_pod`` loses any
    free: Mapping[int, int] = field(init=False)  #: NUMA node → how many of its CPUs are ``available``

    def __post_init__(self) -> None:
        object.__setattr__(self, "free", self._counts(self.available))

    @property
    def available(self) -> CpuSet:
        """What a container could be given: shared, but not reserved."""
        return self.shared & ~self.reserved

    def holds(self, uid: str, container: str) -> CpuSet | None:
        """What a container owns; ``None`` when it owns nothing and runs on the shared CPUs."""
        return self.held.get(uid, {}).get(container)

    def runs_on(self, uid: str, container: str) -> CpuSet:
        """The CPUs a container may use: those it owns, or else the shared ones."""
        own = self.holds(uid, container)
        return self.shared if own is None else own

    def owned(self, uid: str) -> CpuSet:
        """All that a pod and its containers own."""
        return self.pod_held.get(uid, 0) | bits.union(self.held.get(uid, {}).values())

    def owned_by_others(self, uid: str) -> CpuSet:
        """All that pods other than this one own."""
        return bits.union(map(self.owned, {*self.held, *self.pod_held} - {uid}))

    def reusable_by(self, uid: str) -> CpuSet:
        """The CPUs of its init containers that a pod may use again, also if it has given them back since."""
        return self.reusable[1] if self.reusable and self.reusable[0] == uid else 0

    def give(self, uid: str, container: str, *, cpus: CpuSet, reusable: CpuSet | None = None) -> Self:
        """The container owns *cpus*: shared ones, or such as its pod owns already.

        With *reusable*, that is what the pod's next container may use again.
        """
        self._check_free(cpus & ~self.owned(uid))
        held = {**self.held, uid: {**self.held.get(uid, {}), container: cpus}}
        again = self.reusable if reusable is None else (uid, reusable)
        return type(self)(  # not replace(), which takes as long as all the rest of giving
            node_cpus=self.node_cpus,
            reserved=self.reserved,
            shared=self.shared & ~cpus,
            held=held,
            pod_held=self.pod_held,
            reusable=again,
            lost=self.lost,
        )

    def give_pod(self, uid: str, cpus: CpuSet, *, containers: Mapping[str, CpuSet]) -> Self:
        """The pod owns *cpus*, all of them shared until now; *containers* says which container owns which of them."""
        self._check_free(cpus)
        self._check_inside(cpus, bits.union(containers.values()))
        return replace(
            self,
            shared=self.shared & ~cpus,
            held={**self.held, uid: dict(containers)},
            pod_held={**self.pod_held, uid: cpus},
            lost=self.lost | self.owned(uid),
        )

    def take_back(self, uid: str, container: str) -> Self:
        """The container owns nothing any more: what no other container of its pod owns is shared again.

        What a pod was given as one piece comes back as one piece, with its last container.
        """
        containers = self.held.get(uid, {})
        if container not in containers:
            return self
        rest = {name: cpus for name, cpus in containers.items() if name != container}
        held = {**self.held, uid: rest}
        if rest:
            freed = 0 if uid in self.pod_held else containers[container] & ~bits.union(rest.values())
            return replace(self, shared=self.shared | freed, held=held)
        freed = self.owned(uid)
        del held[uid]
        pod_held = {pod: cpus for pod, cpus in self.pod_held.items() if pod != uid}
        return replace(self, shared=self.shared | freed, held=held, pod_held=pod_held)

    def only(self, containers: Collection[tuple[str, str]]) -> Self:
        """Whoever is not among *containers*, each by its pod's uid and its name, owns nothing any more."""
        gone = [(uid, name) for uid, own in self.held.items() for name in own if (uid, name) not in containers]
        ledger = self
        for uid, name in gone:
            ledger = ledger.take_back(uid, name)
        return ledger

    def with_reusable(self, uid: str, cpus: CpuSet) -> Self:
        """The pod's next container may use *cpus* again; what other pods might have used again is forgotten."""
        return self if self.reusable == (uid, cpus) else replace(self, reusable=(uid, cpus))

    def _check_free(self, cpus: CpuSet) -> None:
        taken = cpus & ~self.available
        if taken:
            raise StateError(f"CPUs {bits.show(taken)} are not free to be given")

    def _check_inside(self, cpus: CpuSet, parts: CpuSet) -> None:
        outside = parts & ~cpus
        if outside:
            raise StateError(f"CPUs {bits.show(outside)} are not among those of the pod")

    def _counts(self, cpus: CpuSet) -> dict[int, int]:
        return {node: (cpus & own).bit_count() for node, own in self.node_cpus.items()}
