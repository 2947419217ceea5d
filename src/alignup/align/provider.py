"""The protocol of a hint provider: where a resource can go, and its allocation once a policy has chosen.

CPUs, memory and devices are providers, and callers can add more: pass an object with these methods to ``Host``. The
ledger of a provider is any immutable value: every step returns a new one, so a rejected pod leaves no trace and
deciding stays pure. ``docs/library.md`` builds a complete provider.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeVar

from alignup.align.errors import StateError
from alignup.align.hint import Hint, HintsByResource
from alignup.align.workload import Container, Pod

ProviderLedger = TypeVar("ProviderLedger")


class Need(NamedTuple):
    """The requested amount of a resource, and the free amounts; recorded in the decision."""

    request: int
    free: Mapping[int, int]  #: by NUMA node
    free_total: int | None = None  #: on the whole host; ``None``: the sum over the nodes

    @property
    def total(self) -> int:
        return sum(self.free.values()) if self.free_total is None else self.free_total


class Provider(Protocol[ProviderLedger]):
    """A hint provider; ``container`` is ``None`` for the pod as a whole."""

    @property
    def name(self) -> str:
        """Its name in decisions; unique on a host."""
        ...

    def initial_ledger(self) -> ProviderLedger: ...

    def hints(self, ledger: ProviderLedger, pod: Pod, container: Container | None) -> HintsByResource:
        """Return where the requested resources can go; ``None`` if the container requests none."""
        ...

    def allocate(
        self, ledger: ProviderLedger, pod: Pod, container: Container | None, *, affinity: Hint
    ) -> ProviderLedger:
        """Allocate the request, on the nodes of *affinity* if possible; ``ProviderError`` if it is impossible.

        A container that has an allocation keeps it. ``container`` is ``None`` only for a pod whose pod-level resources
        are allocated as a whole.
        """
        ...

    def start_container(self, ledger: ProviderLedger, pod: Pod, container: Container) -> ProviderLedger:
        """Release what containers that end before *container* starts no longer need."""
        del pod, container
        return ledger

    def release(self, ledger: ProviderLedger, uid: str) -> ProviderLedger: ...

    def needs(self, ledger: ProviderLedger, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        """Return requested and free amounts by resource, for the decision."""
        del ledger, pod, container
        return {}

    def capacity(self, ledger: ProviderLedger, uid: str) -> Mapping[str, int]:
        """Return the host's capacity by resource for the fit check of a pod; empty for cpu, memory and huge pages."""
        del ledger, uid
        return {}

    def describe(self, ledger: ProviderLedger, uid: str, container: str) -> Mapping[str, str]:
        """Return the allocation of a container as text by resource, for the decision."""
        del ledger, uid, container
        return {}

    def to_json(self, ledger: ProviderLedger) -> object:
        """Return the ledger as plain JSON values, to be stored."""
        del ledger
        raise StateError(f"the provider {self.name} cannot store its ledger: it has no to_json and from_json")

    def from_json(self, document: object) -> ProviderLedger:
        """Return the ledger that ``to_json`` stored; ``StateError`` if it is no longer valid on this host."""
        del document
        raise StateError(f"the provider {self.name} cannot store its ledger: it has no to_json and from_json")
