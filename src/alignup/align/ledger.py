"""Everything allocated on a host: the ledgers of the providers, the admitted pods, and their resource usage.

A ledger is immutable: admitting or releasing a pod makes a new one. To undo a decision, keep the ledger from before.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.fit import UsedResources
from alignup.align.hint import Hint
from alignup.align.layered_map import with_item, without_item
from alignup.align.machine import Machine
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.workload import Pod
from alignup.align.workload.demand import FitRequest

if TYPE_CHECKING:
    from alignup.align.claims.ledger import ClaimLedger


class AdmittedPod(NamedTuple):
    pod: Pod
    hints: Mapping[str, Hint]  #: container → the affinity its providers followed
    usage: FitRequest  #: its share of ``Ledger.used``


class DevicePlaces(NamedTuple):
    """Where the devices of plugins are below their NUMA nodes."""

    machine: Machine
    #: resource → sets of devices of which pods of the ledger have some, chosen at random, and maybe not those in it
    unsettled: Mapping[str, tuple[frozenset[str], ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    cpus: CpuLedger
    memory: MemoryLedger
    devices: DeviceLedger
    others: Mapping[str, Any] = field(default_factory=dict)  #: ledgers of providers from outside, by provider name
    pods: Mapping[str, AdmittedPod] = field(default_factory=dict)  #: by uid, in the order of admission
    used: UsedResources = field(default_factory=UsedResources)
    claims: "ClaimLedger | None" = None  #: as last observed: also of pods that have ended since; ``None``: unknown
    places: DevicePlaces | None = field(default=None, compare=False)  #: ``None``: unknown

    def pod_name(self, uid: str) -> str:
        """Return the namespace and name of a pod, or its uid if it has no name."""
        admitted_pod = self.pods.get(uid)
        if admitted_pod is None or not admitted_pod.pod.namespace:
            return uid
        return f"{admitted_pod.pod.namespace}/{admitted_pod.pod.name}"

    def alignment_key(self) -> tuple[Hashable, ...]:
        """Return a key that is equal for ledgers of one machine that place new pods alike, apart from device ids.

        The fit check depends on ``used`` too. Ledgers of providers from outside are not included.
        """
        return self.cpus.shared, self.memory.alignment_key(), self.devices.alignment_key()

    def by_provider(self) -> dict[str, Any]:
        """Return all provider ledgers by provider name, for code that treats all providers alike."""
        return {
            DeviceLedger.PROVIDER: self.devices,
            CpuLedger.PROVIDER: self.cpus,
            MemoryLedger.PROVIDER: self.memory,
            **self.others,
        }

    def with_providers(self, ledgers: Mapping[str, Any]) -> "Ledger":
        """Return this ledger with other provider ledgers, by provider name."""
        return self._with(ledgers, self.pods, self.used)

    def with_pods(self, admitted_pods: Iterable[AdmittedPod]) -> "Ledger":
        """Return this ledger with more pods, whose allocations it has already."""
        pods, usage = dict(self.pods), self.used
        for pod in admitted_pods:
            pods[pod.pod.uid] = pod
            usage = usage.plus(pod.usage)
        return self._with(self.by_provider(), pods, usage)

    def with_pod(self, admitted_pod: AdmittedPod, ledgers: Mapping[str, Any]) -> "Ledger":
        """Return this ledger with one more pod and the provider ledgers after its allocation."""
        pods = with_item(self.pods, admitted_pod.pod.uid, admitted_pod)
        return self._with(ledgers, pods, self.used.plus(admitted_pod.usage))

    def without_pod(self, uid: str, ledgers: Mapping[str, Any]) -> "Ledger":
        """Return this ledger without a pod, with the provider ledgers after its release."""
        usage = self.used.plus(self.pods[uid].usage, by=-1)
        return self._with(ledgers, without_item(self.pods, uid), usage)

    def _with(self, ledgers: Mapping[str, Any], pods: Mapping[str, AdmittedPod], usage: UsedResources) -> "Ledger":
        return Ledger(
            devices=ledgers[DeviceLedger.PROVIDER],
            cpus=ledgers[CpuLedger.PROVIDER],
            memory=ledgers[MemoryLedger.PROVIDER],
            others={name: ledgers[name] for name in self.others} if self.others else self.others,
            pods=pods,
            used=usage,
            claims=self.claims,
            places=self.places,
        )
