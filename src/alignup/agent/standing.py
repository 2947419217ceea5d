"""How things stand, and how one job changes them: pods that come and go, one after the other.

Everything here is pure. A :class:`Standing` never changes; a :class:`Draft` is the next one in the making. Whoever
holds the draft makes it durable first and lets it count then, or drops it, and nothing has happened.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from enum import StrEnum

from alignup.agent.known import API, Known, Record, same
from alignup.agent.waiting import Line
from alignup.align.decision import Decision, Outcome, Refusal
from alignup.align.errors import AlignError, PodError, Problem
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.machine import Device
from alignup.align.workload import Pod
from alignup.serve.service import Admission, BusyError, Entry, NotReadyError, Status

BEHIND = "WaitsItsTurn"  #: the reason of a pod that would fit, but has one in front of it that was overtaken too often


class Kind(StrEnum):
    """What can happen to a pod, or to the host."""

    ADMITTED = "admitted"
    KEPT = "kept"  #: it was there already
    REFUSED = "refused"
    WAITING = "waiting"
    RELEASED = "released"
    ANNOUNCED = "announced"


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
    idle: Ledger  #: of the same host with no pods
    held: Mapping[str, Known] = field(default_factory=dict)  #: those admitted, by uid, in the order they came
    line: Line = field(default_factory=Line)  #: those that wait
    wait: bool = False  #: whether pods that do not fit now wait; those from manifests always do

    def entry(self, uid: str) -> Entry | None:
        """The pod of that uid, as others are told of it."""
        if known := self.held.get(uid):
            return _entry(known, Status.ADMITTED)
        if known := self.line.pods.get(uid):
            return _entry(known, Status.WAITING, position=self.line.position(uid))
        return None

    def entries(self) -> tuple[Entry, ...]:
        """Every pod that is known, those admitted first."""
        running = [_entry(known, Status.ADMITTED) for known in self.held.values()]
        waiting = enumerate(self.line.pods.values(), start=1)
        return (*running, *(_entry(known, Status.WAITING, position=place) for place, known in waiting))

    def everyone(self) -> Iterator[Known]:
        """Every pod that is known."""
        yield from self.held.values()
        yield from self.line.pods.values()


class Draft:
    """The next standing in the making."""

    def __init__(self, standing: Standing, clock: Clock) -> None:
        self._before = standing
        self._clock = clock
        self._host = copy(standing.host)  # a ledger is a value, so a copy may go its own way
        self._held = dict(standing.held)
        self._line = standing.line
        self._changed = False
        self.happenings: list[Happening] = []

    def standing(self) -> Standing:
        """What came of it: the very same standing, if nothing did."""
        if not self._changed:
            return self._before
        return replace(self._before, host=self._host, held=self._held, line=self._line)

    def admit(self, pod: Pod, *, source: str = API) -> Admission:
        """Admit a pod, refuse it, or let it wait; one that is known stays as it is.

        ``PodError`` when a pod of this uid is known that asks for something else, ``BusyError`` when too many wait.
        """
        if pod.uid in self._held or pod.uid in self._line.pods:
            return self._again(pod, source)
        decision, seconds = self._decide(pod)
        first = self._line.first_impatient
        if decision.admitted and first is None:
            self._line = self._line.passed_by()
            return self._take(pod, decision, since=self._clock.now(), source=source, seconds=seconds)
        if decision.admitted and first is not None:
            decision = _turned_away(decision, first.pod)
        elif not self._may_wait(pod, source):
            self._tell(Kind.REFUSED, pod, source=source, decision=decision, seconds=seconds)
            return Admission(decision, None)
        return self._queue(pod, decision, source=source, seconds=seconds)

    def release(self, uid: str) -> Entry | None:
        """A pod is gone, running or waiting; whoever waits is tried again. ``None`` when nobody knew it."""
        entry = self._remove(uid)
        if entry is not None:
            self._retry()
        return entry

    def exchange(self, gone: Iterable[str], come: Iterable[tuple[Pod, str]]) -> tuple[Admission | Exception, ...]:
        """Pods of manifests go and others come, with their sources, before anybody who waits is tried again.

        For each that comes what became of it; one that cannot be taken keeps nobody else from it.
        """
        left = [self._remove(uid) for uid in gone]
        answers = tuple(self._tried(pod, source) for pod, source in come)
        if any(left):
            self._retry()
        return answers

    def announce(self, resource: str, devices: Iterable[Device]) -> None:
        """A device plugin says which devices there are; whoever waits is tried again."""
        devices = tuple(devices)
        self._host.announce(resource, devices)
        idle = copy(self._host)
        idle.ledger = self._before.idle
        idle.announce(resource, devices)
        self._before = replace(self._before, idle=idle.ledger)
        self._changed = True
        detail = f"{resource}: {sum(device.healthy for device in devices)} of {len(devices)} devices are healthy"
        self.happenings.append(Happening(kind=Kind.ANNOUNCED, time=self._clock.now(), detail=detail))
        self._retry()

    def try_waiting(self) -> None:
        """Try again whoever waits, as after a restart."""
        self._retry()

    def _again(self, pod: Pod, source: str) -> Admission:
        """What is said of a pod that is known."""
        known = self._held.get(pod.uid) or self._line.pods[pod.uid]
        if not same(pod, known.pod):
            name = f"{known.pod.namespace}/{known.pod.name}"
            raise PodError(
                [Problem("metadata.uid", f"pod {name} has it and asks for something else; release it first")]
            )
        waits = pod.uid in self._line.pods
        decision = known.record.decision if waits else self._host.decide(known.pod)
        if not waits:
            self._tell(Kind.KEPT, known.pod, source=source, decision=decision)
        return Admission(decision, self._drafted().entry(pod.uid))

    def _tried(self, pod: Pod, source: str) -> Admission | Exception:
        try:
            return self.admit(pod, source=source)
        except (AlignError, BusyError, NotReadyError) as error:
            return error

    def _take(self, pod: Pod, decision: Decision, *, since: float, source: str, seconds: float) -> Admission:
        """Give the pod what was decided."""
        self._host.apply(decision)
        record = self._tell(Kind.ADMITTED, pod, source=source, decision=decision, seconds=seconds)
        known = Known(pod=pod, since=since, source=source, record=record)
        self._held[pod.uid] = known
        self._changed = True
        return Admission(decision, _entry(known, Status.ADMITTED))

    def _queue(self, pod: Pod, decision: Decision, *, source: str, seconds: float) -> Admission:
        """Let the pod wait."""
        self._line.check_room()
        record = self._tell(Kind.WAITING, pod, source=source, decision=decision, seconds=seconds)
        known = Known(pod=pod, since=self._clock.now(), source=source, record=record)
        self._line = self._line.joined(known)
        self._changed = True
        return Admission(decision, _entry(known, Status.WAITING, position=len(self._line.pods)))

    def _remove(self, uid: str) -> Entry | None:
        """Forget a pod, and take back what it has."""
        entry = self._drafted().entry(uid)
        if entry is None:
            return None
        if uid in self._held:
            self._host.release(uid)
            del self._held[uid]
        else:
            self._line = self._line.without(uid)
        self._changed = True
        self.happenings.append(
            Happening(kind=Kind.RELEASED, time=self._clock.now(), pod=entry.pod, source=entry.source)
        )
        return entry

    def _retry(self) -> None:
        """Admit of those who wait all that fit now, in their order."""
        hopeless: set[str] = set()  # shapes that do not fit the ledger as it is
        passed: list[str] = []
        for uid, known in self._line.pods.items():
            if known.shape not in hopeless and self._retried(known):
                hopeless.clear()
                overtaken = passed
            else:
                hopeless.add(known.shape)
                passed.append(uid)
                overtaken = [uid]
            if any(map(self._line.impatient, overtaken)):
                return

    def _retried(self, known: Known) -> bool:
        """Whether one that waits fits now; then it is admitted."""
        try:
            decision, seconds = self._decide(known.pod)
        except (AlignError, NotReadyError):  # that one cannot be decided on must not keep others from anything
            return False
        if not decision.admitted:
            self._line = self._line.noted(known.told(decision))
            return False
        self._line = self._line.passed_by(known.pod.uid).without(known.pod.uid)
        self._take(known.pod, decision, since=self._clock.now(), source=known.source, seconds=seconds)
        return True

    def _decide(self, pod: Pod) -> tuple[Decision, float]:
        """What would become of a pod now, and how many seconds it took to know."""
        start = self._clock.watch()
        decision = self._host.decide(pod)
        if decision.outcome is Outcome.ASKING:
            resources = ", ".join(sorted({ask.resource for ask in decision.asks}))
            raise NotReadyError(f"the device plugin of {resources} wants to be asked, and it is not here")
        return decision, self._clock.watch() - start

    def _may_wait(self, pod: Pod, source: str) -> bool:
        """Whether a refused pod waits: it may, and it would fit if nothing else were here."""
        if source == API and not self._before.wait:
            return False
        alone = copy(self._host)
        alone.ledger = self._before.idle
        return alone.decide(pod).admitted

    def _drafted(self) -> Standing:
        return replace(self._before, host=self._host, held=self._held, line=self._line)

    def _tell(self, kind: Kind, pod: Pod, *, source: str, decision: Decision, seconds: float = 0.0) -> Record:
        """Note what was decided, and give it to be kept."""
        record = Record(decision)
        self.happenings.append(
            Happening(
                kind=kind,
                time=self._clock.now(),
                pod=pod,
                source=source,
                decision=decision,
                record=record,
                seconds=seconds,
            )
        )
        return record


def _entry(known: Known, status: Status, *, position: int | None = None) -> Entry:
    return Entry(
        pod=known.pod,
        status=status,
        since=known.since,
        source=known.source,
        decision=known.record.decision,
        position=position,
    )


def _turned_away(decision: Decision, first: Pod) -> Decision:
    """The record of a pod that would fit, but may not overtake *first* any more."""
    message = f"Pod {first.namespace}/{first.name} waits in front of it and has been overtaken as often as it may be"
    return replace(
        decision,
        outcome=Outcome.REFUSED,
        placements=(),
        refusal=Refusal(BEHIND, message),
    )
