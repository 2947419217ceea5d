"""The CPU ledger of one machine: which container owns which CPUs.

A ledger is immutable: every change returns a new one. To undo a decision, keep the ledger from before.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import StateError
from alignup.align.layered_map import with_item, without_item


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLedger:
    """The CPUs of a machine: each is shared, owned (by containers of one pod, perhaps several), or lost."""

    PROVIDER: ClassVar = "cpu"

    node_cpus: Mapping[int, CpuSet]  #: by NUMA node
    reserved: CpuSet  #: never owned by a container
    shared: CpuSet  #: not owned; includes the reserved CPUs, except with strict-cpu-reservation
    held: Mapping[str, Mapping[str, CpuSet]] = field(default_factory=dict)  #: pod uid → container → its CPUs
    pod_held: Mapping[str, CpuSet] = field(default_factory=dict)  #: pod uid → CPUs allocated to the pod as a whole
    #: the last pod handled, and the CPUs of its init containers that its next container may reuse
    reusable: tuple[str, CpuSet] | None = None
    lost: CpuSet = 0  #: owned by a pod that was placed again elsewhere; only a second ``give_pod`` loses CPUs
    #: a pod and all CPUs that it owns: of a pod with thousands of containers they are not added up for each container
    last_owner: tuple[str, CpuSet] | None = field(default=None, compare=False, repr=False)
    available: CpuSet = field(init=False, compare=False, repr=False)  #: shared and not reserved
    free: Mapping[int, int] = field(init=False)  #: the number of ``available`` CPUs by NUMA node

    def __post_init__(self) -> None:
        available = self.shared & ~self.reserved
        free = {node: (available & node_cpus).bit_count() for node, node_cpus in self.node_cpus.items()}
        object.__setattr__(self, "available", available)
        object.__setattr__(self, "free", free)

    def holds(self, uid: str, container: str) -> CpuSet | None:
        """Return what a container owns; ``None`` if it uses the shared pool."""
        return self.held.get(uid, {}).get(container)

    def owned(self, uid: str) -> CpuSet:
        if self.last_owner and self.last_owner[0] == uid:
            return self.last_owner[1]
        return self.pod_held.get(uid, 0) | bits.union(self.held.get(uid, {}).values())

    def reusable_by(self, uid: str) -> CpuSet:
        """Return the CPUs of its init containers that a pod may reuse, even if it has released them since."""
        return self.reusable[1] if self.reusable and self.reusable[0] == uid else 0

    def give(
        self, uid: str, container: str, *, cpus: CpuSet, reusable: CpuSet | None = None, checked: bool = True
    ) -> Self:
        """Give CPUs that are available or the pod's; the next container may reuse *reusable* (``None``: as before).

        Without *checked*, any CPUs are given, as a defect of the kubelet does.
        """
        if checked and cpus & ~self.available:
            self._check_available(cpus & ~self.owned(uid))
        containers = self.held.get(uid, {})
        earlier = self.owned(uid) if containers or self.pod_held else 0
        owner = None if container in containers else (uid, earlier | cpus)
        again = self.reusable if reusable is None else (uid, reusable)
        return type(self)(
            node_cpus=self.node_cpus,
            reserved=self.reserved,
            shared=self.shared & ~cpus,
            held=with_item(self.held, uid, with_item(containers, container, cpus)),
            pod_held=self.pod_held,
            reusable=again,
            lost=self.lost,
            last_owner=owner,
        )

    def give_pod(self, uid: str, cpus: CpuSet, *, containers: Mapping[str, CpuSet], checked: bool = True) -> Self:
        """Give *cpus*, all of them available, to a pod as a whole; *containers* are the parts of its containers.

        Without *checked*, any CPUs are given, as a defect of the kubelet does.
        """
        if checked:
            self._check_available(cpus)
        outside = bits.union(containers.values()) & ~cpus
        if checked and outside:
            raise StateError(f"CPUs {bits.show(outside)} are not CPUs of the pod")
        return replace(
            self,
            shared=self.shared & ~cpus,
            held=with_item(self.held, uid, dict(containers)) if containers else self.held,
            pod_held=with_item(self.pod_held, uid, cpus),
            lost=self.lost | self.owned(uid),
            last_owner=None,
        )

    def take_back(self, uid: str, container: str) -> Self:
        """Release what no other container of the pod has; CPUs of a pod as a whole go with its last container."""
        containers = self.held.get(uid, {})
        if container not in containers:
            return self
        if len(containers) > 1:
            rest = {name: cpus for name, cpus in containers.items() if name != container}
            freed_cpus = 0 if uid in self.pod_held else containers[container] & ~bits.union(rest.values())
            return replace(self, shared=self.shared | freed_cpus, held=with_item(self.held, uid, rest), last_owner=None)
        return self.take_back_all(uid)

    def take_back_all(self, uid: str) -> Self:
        containers = self.held.get(uid)
        if not containers:
            return self
        # The containers of a pod with CPUs as a whole have parts of these; by a defect, perhaps others, which stay.
        freed_cpus = self.pod_held[uid] if uid in self.pod_held else bits.union(containers.values())
        return type(self)(
            node_cpus=self.node_cpus,
            reserved=self.reserved,
            shared=self.shared | freed_cpus,
            held=without_item(self.held, uid),
            pod_held=without_item(self.pod_held, uid) if uid in self.pod_held else self.pod_held,
            reusable=self.reusable,
            lost=self.lost,
        )

    def forget(self, uid: str) -> Self:
        """Release all CPUs of a pod, also CPUs that none of its containers has."""
        ledger = self.take_back_all(uid)
        if uid not in ledger.pod_held:
            return ledger
        return replace(ledger, shared=ledger.shared | ledger.pod_held[uid], pod_held=without_item(ledger.pod_held, uid))

    def with_parts(self, uid: str, containers: Mapping[str, CpuSet]) -> Self:
        """Divide the CPUs that a pod has as a whole among its containers."""
        if containers == self.held.get(uid):
            return self
        return replace(self, held=with_item(self.held, uid, dict(containers)), last_owner=None)

    def only(self, containers: Collection[tuple[str, str]]) -> Self:
        """Release the CPUs of all containers that are not among these (pod uid, name)."""
        gone_containers = [
            (uid, name)
            for uid, containers_of_pod in self.held.items()
            for name in containers_of_pod
            if (uid, name) not in containers
        ]
        ledger = self
        for uid, name in gone_containers:
            ledger = ledger.take_back(uid, name)
        return ledger

    def with_reusable(self, uid: str, cpus: CpuSet) -> Self:
        """Let the next container of the pod reuse *cpus*; other pods can reuse nothing any more."""
        return self if self.reusable == (uid, cpus) else replace(self, reusable=(uid, cpus))

    def _check_available(self, cpus: CpuSet) -> None:
        unavailable = cpus & ~self.available
        if unavailable:
            raise StateError(f"CPUs {bits.show(unavailable)} are not available")
