"""What a hint provider is: somebody who says where a resource could go, and puts it there once a policy has chosen.

CPUs, memory and devices are providers (``align.providers``), and anybody may add one: write a class with these methods
and hand it to ``Host``. Its ledger is any value that is never changed in place: what a step changes it returns anew, so
a refused pod leaves no trace and deciding stays pure. ``docs/library.md`` builds one in full.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeVar

from alignup.align.errors import StateError
from alignup.align.hint import Hint, HintsByResource
from alignup.align.workload import Container, Pod

Book = TypeVar("Book")  #: the ledger of one provider


class Need(NamedTuple):
    """How much of a resource is asked for, and how much of it each NUMA node has free: for the record."""

    request: int
    free: Mapping[int, int]
    in_all: int | None = None  #: free on the host as a whole, where that is not what its nodes add up to


class Provider(Protocol[Book]):
    """A hint provider; ``container`` is ``None`` where the pod as a whole is meant."""

    @property
    def name(self) -> str:
        """What it is called in records; unique on a host."""
        ...

    def idle(self) -> Book:
        """Its ledger when nothing is given out."""
        ...

    def hints(self, book: Book, pod: Pod, container: Container | None) -> HintsByResource:
        """Where its resources could go; nothing, when it has no part in this container."""
        ...

    def allocate(self, book: Book, pod: Pod, container: Container | None, *, affinity: Hint) -> Book:
        """Give out what is asked for, on the nodes of *affinity* if it can; ``ProviderError`` when it cannot at all.

        What a container already has it keeps. The pod as a whole is meant only where its own resources are given out
        in one piece.
        """
        ...

    def started(self, book: Book, pod: Pod, container: Container) -> Book:
        """The container starts: what earlier containers are done with may be taken back."""
        del pod, container
        return book

    def release(self, book: Book, uid: str) -> Book:
        """Take back all that a pod was given."""
        ...

    def needs(self, book: Book, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        """What is asked for and free, by resource, as far as it is to be on record."""
        del book, pod, container
        return {}

    def offered(self, book: Book, uid: str) -> Mapping[str, int]:
        """What the host has of its resources in all, by name, for the fit check of a pod; nothing for plain ones."""
        del book, uid
        return {}

    def given(self, book: Book, uid: str, container: str) -> Mapping[str, str]:
        """What a container has, by resource, as text for the record."""
        ...

    def keep(self, book: Book) -> object:
        """Its ledger as plain JSON values, for a file that outlives the program; ``kept`` reads them."""
        del book
        raise StateError(f"the provider {self.name} does not say how its ledger is stored: it has no keep and kept")

    def kept(self, document: object) -> Book:
        """The ledger that ``keep`` wrote down; ``StateError`` when what it says cannot be so any more."""
        del document
        raise StateError(f"the provider {self.name} does not say how its ledger is stored: it has no keep and kept")
