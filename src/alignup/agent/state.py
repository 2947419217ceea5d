"""The state of the agent as an immutable value, and the events that change it; ``agent.transaction`` makes the next."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice

from alignup.agent.api import AdmissionStatus, PodView
from alignup.agent.pending_admission import PendingAdmission, assume_no_preferences
from alignup.agent.pod_record import API_SOURCE, PodRecord, RecordMap
from alignup.agent.wait_queue import WaitQueue
from alignup.align.decision import Decision
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod


class EventKind(StrEnum):
    ADMITTED = "admitted"
    KEPT = "kept"  #: the pod was admitted before
    REJECTED = "rejected"
    WAITING = "waiting"
    RELEASED = "released"
    ANNOUNCED = "announced"  #: a device plugin listed its devices
    STOPPED = "stopped"  #: a device plugin disconnected
    GONE = "gone"  #: a device plugin did not reconnect in time


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """Source of log lines, metrics, history and event streams."""

    kind: EventKind
    time: float  #: seconds since 1970
    pod: Pod | None = None
    source: str = API_SOURCE
    decision: Decision | None = None
    seconds: float = 0.0  #: spent on the decision
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    now: Callable[[], float]  #: seconds since 1970
    monotonic: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    host: Host  #: must not be changed
    idle_ledger: Ledger  #: of the host without pods, with all devices healthy
    admitted: RecordMap = field(default_factory=dict)  #: in admission order
    #: uids that were added to ``admitted``, replaced or removed since it was last saved
    unsaved: frozenset[str] = field(default=frozenset(), compare=False)
    waiting: WaitQueue = field(default_factory=WaitQueue)
    wait_enabled: bool = False  #: whether pods from the API wait if they do not fit; pods from manifests always do
    plugins: frozenset[str] = frozenset()  #: resources that device plugins serve or have served
    #: by uid; they hold resources in the ledger and are not saved. Pods from manifests are also ``waiting``.
    pending: Mapping[str, PendingAdmission] = field(default_factory=dict)
    backing_off: frozenset[str] = frozenset()  #: uids of waiting pods that a plugin rejected recently

    def with_changes(  # noqa: PLR0913
        self,
        *,
        host: Host,
        admitted: RecordMap,
        unsaved: frozenset[str],
        waiting: WaitQueue,
        pending: Mapping[str, PendingAdmission],
        backing_off: frozenset[str],
    ) -> "AgentState":
        """Return the state with what transactions change; ``replace`` takes three times as long."""
        return AgentState(
            host=host,
            idle_ledger=self.idle_ledger,
            admitted=admitted,
            unsaved=unsaved,
            waiting=waiting,
            wait_enabled=self.wait_enabled,
            plugins=self.plugins,
            pending=pending,
            backing_off=backing_off,
        )

    def saved(self) -> "AgentState":
        return self.with_changes(
            host=self.host,
            admitted=self.admitted,
            unsaved=frozenset(),
            waiting=self.waiting,
            pending=self.pending,
            backing_off=self.backing_off,
        )

    def settled_host(self) -> Host:
        if not self.pending:
            return self.host
        host = copy(self.host)
        for uid in self.pending:
            host.release(uid)
        return host

    def fits_empty_host(self, pod: Pod) -> bool:
        """Whether the host without other pods, and with healthy devices, would admit the pod."""
        empty = copy(self.host)
        empty.ledger = self.idle_ledger
        return assume_no_preferences(empty, pod, empty.decide(pod), {}).admitted

    def pod_view(self, uid: str) -> PodView | None:
        if record := self.admitted.get(uid):
            return pod_view(record, AdmissionStatus.ADMITTED)
        if record := self.waiting.pods.get(uid):
            return pod_view(record, AdmissionStatus.WAITING, position=self.waiting.position(uid))
        return None

    @property
    def pod_count(self) -> int:
        return len(self.admitted) + len(self.waiting.pods)

    def pod_views(self, start: int = 0, stop: int | None = None) -> tuple[PodView, ...]:
        """Return all pods, or those from *start* to *stop*: admitted, then waiting ones."""
        waiting = enumerate(self.waiting.pods.values(), start=1)
        listed = chain(
            ((record, AdmissionStatus.ADMITTED, None) for record in self.admitted.values()),
            ((record, AdmissionStatus.WAITING, position) for position, record in waiting),
        )
        selected = islice(listed, start, stop)
        return tuple(pod_view(record, status, position=position) for record, status, position in selected)

    def all_records(self) -> Iterator[PodRecord]:
        return chain(self.admitted.values(), self.waiting.pods.values())


def event_about(
    kind: EventKind, about: PendingAdmission | PodRecord | PodView | None, *, time: float, detail: str = ""
) -> AgentEvent:
    if about is None:
        return AgentEvent(kind=kind, time=time, detail=detail)
    decision, seconds = (about.decision, about.seconds) if isinstance(about, PendingAdmission) else (None, 0.0)
    return AgentEvent(
        kind=kind,
        time=time,
        pod=about.pod,
        source=about.source,
        decision=decision,
        seconds=seconds,
        detail=detail,
    )


def pod_view(record: PodRecord, status: AdmissionStatus, *, position: int | None = None) -> PodView:
    return PodView(
        pod=record.pod,
        status=status,
        since=record.since,
        source=record.source,
        decision=record.decision,
        position=position,
        grants=record.grants,
    )
