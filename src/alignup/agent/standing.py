"""How things stand: the pods that are here, those on their way in and those that wait; and what can happen to them.

Everything here is a value that never changes; ``agent.draft`` makes the next one.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from enum import StrEnum

from alignup.agent.finished import Finished
from alignup.agent.known import API, Known, Record
from alignup.agent.pending import Pending
from alignup.agent.waiting import Line
from alignup.align.decision import Decision
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.serve.service import Entry, Status


class Kind(StrEnum):
    """What can happen to a pod, or to the host."""

    ADMITTED = "admitted"
    KEPT = "kept"  #: it was there already
    REFUSED = "refused"
    WAITING = "waiting"
    RELEASED = "released"
    ANNOUNCED = "announced"
    STOPPED = "stopped"  #: a device plugin
    GONE = "gone"  #: and it was not back in time
    ENDING = "ending"  #: a pod was told to stop
    FINISHED = "finished"  #: it has run to its end
    STARTED = "started"  #: a container
    ENDED = "ended"  #: a container
    TROUBLE = "trouble"  #: something cannot be done for a pod now, and is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that happened, for logs, metrics, history and whoever listens."""

    kind: Kind
    time: float  #: seconds since 1970
    pod: Pod | None = None
    source: str = API
    decision: Decision | None = None
    record: Record | None = None  #: the same decision, to be kept
    seconds: float = 0.0  #: what deciding took
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time, handed in: what o'clock it is, and a watch that never jumps."""

    now: Callable[[], float]
    watch: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The host, whose ledger is left alone from now on, and the pods that are known."""

    host: Host
    idle: Ledger  #: of the same host with no pods, all of whose devices are healthy
    held: Mapping[str, Known] = field(default_factory=dict)  #: those admitted, by uid, in the order they came
    line: Line = field(default_factory=Line)  #: those that wait
    wait: bool = False  #: whether pods that do not fit now wait; those from manifests always do
    plugins: frozenset[str] = frozenset()  #: resources that are, or were, served by device plugins
    #: those on their way in, by uid: they have a place in the ledger, and are not written down; some wait in line too
    pending: Mapping[str, Pending] = field(default_factory=dict)
    resting: frozenset[str] = frozenset()  #: of those that wait, whom a plugin refused a moment ago
    finished: Mapping[str, Finished] = field(default_factory=dict)  #: those that have run, by uid, as they ended

    def settled(self) -> Host:
        """The host with just the pods that are here for good."""
        if not self.pending:
            return self.host
        host = copy(self.host)
        for uid in self.pending:
            host.release(uid)
        return host

    def entry(self, uid: str) -> Entry | None:
        """The pod of that uid, as others are told of it."""
        if known := self.held.get(uid):
            return entry_of(known, Status.ADMITTED)
        if known := self.line.pods.get(uid):
            return entry_of(known, Status.WAITING, position=self.line.position(uid))
        if finished := self.finished.get(uid):
            return finished_entry(finished)
        return None

    def entries(self) -> tuple[Entry, ...]:
        """Every pod that is known, those admitted first, those that have run last."""
        running = [entry_of(known, Status.ADMITTED) for known in self.held.values()]
        waiting = [
            entry_of(known, Status.WAITING, position=place)
            for place, known in enumerate(self.line.pods.values(), start=1)
        ]
        return (*running, *waiting, *map(finished_entry, self.finished.values()))

    def everyone(self) -> Iterator[Known]:
        """Every pod that is known."""
        yield from self.held.values()
        yield from self.line.pods.values()
        yield from (one.known for one in self.finished.values())


def entry_of(known: Known, status: Status, *, position: int | None = None) -> Entry:
    """A pod that is known, as others are told of it."""
    return Entry(
        pod=known.pod,
        status=status,
        since=known.since,
        source=known.source,
        decision=known.record.decision,
        position=position,
        grants=known.grants,
    )


def finished_entry(finished: Finished) -> Entry:
    """A pod that has run, as others are told of it."""
    return replace(entry_of(finished.known, Status.FINISHED), run=finished.run)
