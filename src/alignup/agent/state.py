"""The state of the agent as an immutable value: the records of its pods, the wait queue, and the events that change it.

``agent.transaction`` makes the next state.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice
from typing import Any, Self, overload

from alignup.agent.pending_admission import PendingAdmission, assume_no_preferences, with_announced_devices
from alignup.align.bits import quote
from alignup.align.decision import Decision
from alignup.align.errors import PodError, Problem
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.overtaking import competes
from alignup.align.workload import Pod
from alignup.align.workload.names import POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.documents.codec import build
from alignup.picture.text_format import pluralize
from alignup.placement.wait_queue import WaitQueue
from alignup.store.state_store import DurablePod, DurableState
from alignup.web.responses import BusyError

Document = Mapping[str, Any]  #: JSON values

MAX_UID = 1_024  #: characters; the HTTP API accepts no longer one
MAX_METADATA = 256 << 10  #: characters of all labels and annotations; the API server has this limit for annotations
MAX_GRANT_BYTES = 256 << 10  #: of everything that device plugins return for one pod

MAX_OVERTAKES = 16
MAX_WAITING = 1_000
MAX_BLOCKING = 16  #: pods at their limit that others can overtake; behind more of them, every pod waits
MAX_TRIES = 8  #: different requests that are retried from the first pod at its limit on, when something is released

API_SOURCE = "api"  #: the source of pods that come from no manifest file


class AdmissionStatus(StrEnum):
    ADMITTED = "admitted"
    WAITING = "waiting"  #: the pod does not fit now, and is retried when resources are released


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord(DurablePod):
    decision: Decision  #: the latest, without its ledgers, which would stay in memory

    def with_decision(self, decision: Decision) -> "PodRecord":
        latest = decision.without_ledgers()
        return PodRecord(pod=self.pod, since=self.since, source=self.source, decision=latest, grants=self.grants)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView(PodRecord):
    """A pod that the agent knows: admitted or waiting."""

    status: AdmissionStatus
    position: int | None = None  #: in the wait queue, from 1


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    decision: Decision
    pod_view: PodView | None  #: ``None``: rejected, or a dry run


class WaitingPods(WaitQueue[str, PodRecord]):
    """The pods that wait for resources, in arrival order, and how often later pods have overtaken each.

    A pod that does not fit does not block later pods that do, but each pod is overtaken only a limited number of times.
    After that, a pod behind it is admitted before it only if it takes nothing that the waiting pod could use
    (``align.overtaking``).
    """

    def __init__(self, *, max_overtakes: int | None = MAX_OVERTAKES, capacity: int = MAX_WAITING) -> None:
        super().__init__()
        self.max_overtakes = max_overtakes  #: ``None``: no limit
        self.capacity = capacity
        self.overtakes: dict[str, int] = {}  #: uid → count; uids without overtakes are left out

    def copy(self) -> Self:
        queue = super().copy()
        queue.overtakes = dict(self.overtakes)
        return queue

    def uids(self) -> list[str]:
        return [record.pod.uid for record in self]

    def add(self, record: PodRecord) -> None:
        """Append a pod; ``BusyError`` if the queue is full."""
        if len(self) >= self.capacity:
            raise BusyError(f"no more than {pluralize(len(self), 'pod')} can wait")
        self.update(record)

    def update(self, record: PodRecord) -> None:
        self.put(record.pod.uid, record, kind=record.pod.request_key)

    def remove(self, uid: str) -> PodRecord | None:
        self.overtakes.pop(uid, None)
        return super().remove(uid)

    def count_overtakes(self, uid: str | None = None) -> None:
        """Count an overtake for every pod ahead of *uid*; for every pod if *uid* is not waiting."""
        for other in self.uids():
            if other == uid:
                break
            self.overtakes[other] = self.overtakes.get(other, 0) + 1

    def is_blocking(self, uid: str) -> bool:
        """Whether the pod must not be overtaken again by a pod that takes something from it."""
        return self.max_overtakes is not None and self.overtakes.get(uid, 0) >= self.max_overtakes

    def blocking_pod(
        self, host: Host, decision: Decision, uids: Iterable[str], resources: Collection[str] = ()
    ) -> Pod | None:
        """Return the first of the blocking pods *uids* if the admission takes something that one of them could use.

        A device plugin has yet to choose the devices of *resources*.
        """
        if not decision.admitted:
            return None
        pods = [record.pod for uid in islice(uids, MAX_BLOCKING + 1) if (record := self.get(uid))]
        if not pods or (len(pods) <= MAX_BLOCKING and not competes(host, decision, pods, resources=resources)):
            return None
        return pods[0]


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
    """The source of log lines, metrics, history and event streams."""

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
    """What the agent knows at one moment; nothing in it may be changed."""

    host: Host
    idle_ledger: Ledger  #: of the host without pods, with all devices healthy
    admitted: Mapping[str, PodRecord] = field(default_factory=dict)  #: in admission order
    waiting: WaitingPods = field(default_factory=WaitingPods)
    wait_enabled: bool = False  #: whether pods from the API wait if they do not fit; pods from manifests always do
    plugins: frozenset[str] = frozenset()  #: resources that device plugins serve or have served
    #: by uid; they hold resources in the ledger and are not saved. Pods from manifests are also ``waiting``.
    pending: Mapping[str, PendingAdmission] = field(default_factory=dict)
    backing_off: frozenset[str] = frozenset()  #: uids of waiting pods that a plugin rejected recently

    def settled_host(self) -> Host:
        """Return the host without what pending pods hold."""
        return self.host.without_pods(self.pending) if self.pending else self.host

    def shown_host(self) -> Host:
        """Return the settled host for readers: its machine has the devices that plugins listed."""
        return with_announced_devices(self.settled_host())

    def durable(self) -> DurableState:
        """Return what must survive a crash."""
        return DurableState(
            host=self.settled_host(),
            admitted=self.admitted,
            waiting=self.waiting,
            overtaken=self.waiting.overtakes,
            plugins=self.plugins,
        )

    def fits_empty_host(self, pod: Pod) -> bool:
        """Whether the host without other pods, and with healthy devices, would admit the pod."""
        empty = self.host.with_ledger(self.idle_ledger)
        return assume_no_preferences(empty, pod, empty.decide(pod), {}).admitted

    def pod_view(self, uid: str) -> PodView | None:
        if record := self.admitted.get(uid):
            return build(PodView, record, status=AdmissionStatus.ADMITTED, position=None)
        if record := self.waiting.get(uid):
            return build(PodView, record, status=AdmissionStatus.WAITING, position=self.waiting.position(uid))
        return None

    def pod_views(self, start: int = 0, stop: int | None = None) -> tuple[PodView, ...]:
        """Return all pods, or the pods from *start* to *stop*: admitted pods, then waiting pods."""
        pods = chain(
            ((record, AdmissionStatus.ADMITTED, None) for record in self.admitted.values()),
            ((record, AdmissionStatus.WAITING, position) for position, record in enumerate(self.waiting, start=1)),
        )
        selected_pods = islice(pods, start, stop)
        return tuple(
            build(PodView, record, status=status, position=position) for record, status, position in selected_pods
        )

    def all_records(self) -> Iterator[PodRecord]:
        return chain(self.admitted.values(), self.waiting)


class PodViews(Sequence[PodView]):
    """The pods of *state*; views are created when they are read."""

    def __init__(self, state: AgentState) -> None:
        self._state = state

    def __len__(self) -> int:
        return len(self._state.admitted) + len(self._state.waiting)

    @overload
    def __getitem__(self, index: int) -> PodView: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PodView]: ...
    def __getitem__(self, index: int | slice) -> PodView | Sequence[PodView]:
        if isinstance(index, int):
            return self[range(len(self))[index] :][0]
        start, stop, step = index.indices(len(self))
        return self._state.pod_views(start, max(start, stop))[::step]

    def __iter__(self) -> Iterator[PodView]:
        return iter(self._state.pod_views())


def check_uid(uid: str) -> None:
    """Raise ``PodError`` for a uid that cannot be part of a URL path: such a pod could never be released."""
    if not 0 < len(uid) <= MAX_UID:
        raise PodError([Problem("metadata.uid", f"must have 1 to {MAX_UID} characters, not {len(uid)}")])
    if "/" in uid or uid in {".", ".."} or not uid.isprintable():
        message = f"must consist of printable characters without slashes, and be more than dots, not {quote(uid)}"
        raise PodError([Problem("metadata.uid", message)])


def same_workload(pod: Pod, other: Pod) -> bool:
    """Return whether *pod* requests the same resources as *other*."""
    annotations = (POLICY_ANNOTATION, SCOPE_ANNOTATION)
    requests, known_requests = (
        (item.init, item.containers, item.resources, item.overhead, *map(item.annotations.get, annotations))
        for item in (pod, other)
    )
    return requests == known_requests
