"""How things stand: the pods that are here, those on their way in and those that wait; and what can happen to them.

Everything here is a value that never changes; ``agent.transaction`` makes the next one.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from enum import StrEnum

from alignup.agent.finished_pods import FinishedPod
from alignup.agent.pending_admission import PendingAdmission
from alignup.agent.pod_record import API_SOURCE, PodRecord, StoredRecord
from alignup.agent.wait_queue import WaitQueue
from alignup.align.decision import Decision
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.schema.api import AdmissionStatus, PodView


class EventKind(StrEnum):
    """What can happen to a pod, or to the host."""

    ADMITTED = "admitted"
    KEPT = "kept"  #: it was there already
    REJECTED = "rejected"
    WAITING = "waiting"
    RELEASED = "released"
    ANNOUNCED = "announced"
    STOPPED = "stopped"  #: a device plugin
    GONE = "gone"  #: and it was not back in time
    TERMINATING = "ending"  #: a pod was told to stop
    FINISHED = "finished"  #: it has run to its end
    STARTED = "started"  #: a container
    ENDED = "ended"  #: a container
    TROUBLE = "trouble"  #: something cannot be done for a pod now, and is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """Something that happened, for logs, metrics, history and whoever listens."""

    kind: EventKind
    time: float  #: seconds since 1970
    pod: Pod | None = None
    source: str = API_SOURCE
    decision: Decision | None = None
    record: StoredRecord | None = None  #: the same decision, to be kept
    seconds: float = 0.0  #: what deciding took
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time, handed in: what o'clock it is, and a watch that never jumps."""

    now: Callable[[], float]
    watch: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """The host, whose ledger is left alone from now on, and the pods that are known."""

    host: Host
    idle: Ledger  #: of the same host with no pods, all of whose devices are healthy
    held: Mapping[str, PodRecord] = field(default_factory=dict)  #: those admitted, by uid, in the order they came
    line: WaitQueue = field(default_factory=WaitQueue)  #: those that wait
    wait: bool = False  #: whether pods that do not fit now wait; those from manifests always do
    plugins: frozenset[str] = frozenset()  #: resources that are, or were, served by device plugins
    #: those on their way in, by uid: they have a place in the ledger, and are not written down; some wait in line too
    pending: Mapping[str, PendingAdmission] = field(default_factory=dict)
    backing_off: frozenset[str] = frozenset()  #: of those that wait, whom a plugin refused a moment ago
    finished: Mapping[str, FinishedPod] = field(default_factory=dict)  #: those that have run, by uid, as they ended

    def settled(self) -> Host:
        """The host with just the pods that are here for good."""
        if not self.pending:
            return self.host
        host = copy(self.host)
        for uid in self.pending:
            host.release(uid)
        return host

    def pod_view(self, uid: str) -> PodView | None:
        """The pod of that uid, as others are told of it."""
        if known := self.held.get(uid):
            return pod_view(known, AdmissionStatus.ADMITTED)
        if known := self.line.pods.get(uid):
            return pod_view(known, AdmissionStatus.WAITING, position=self.line.position(uid))
        if finished := self.finished.get(uid):
            return finished_pod_view(finished)
        return None

    def pod_views(self) -> tuple[PodView, ...]:
        """Every pod that is known, those admitted first, those that have run last."""
        running = [pod_view(known, AdmissionStatus.ADMITTED) for known in self.held.values()]
        waiting = [
            pod_view(known, AdmissionStatus.WAITING, position=place)
            for place, known in enumerate(self.line.pods.values(), start=1)
        ]
        return (*running, *waiting, *map(finished_pod_view, self.finished.values()))

    def everyone(self) -> Iterator[PodRecord]:
        """Every pod that is known."""
        yield from self.held.values()
        yield from self.line.pods.values()
        yield from (one.known for one in self.finished.values())


def pod_view(known: PodRecord, status: AdmissionStatus, *, position: int | None = None) -> PodView:
    """A pod that is known, as others are told of it."""
    return PodView(
        pod=known.pod,
        status=status,
        since=known.since,
        source=known.source,
        decision=known.record.decision,
        position=position,
        grants=known.grants,
    )


def finished_pod_view(finished: FinishedPod) -> PodView:
    """A pod that has run, as others are told of it."""
    return replace(pod_view(finished.known, AdmissionStatus.FINISHED), run=finished.run)
