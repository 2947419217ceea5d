"""Events about pods, for ``kubectl describe pod``: few, short, and the same text counted instead of repeated."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from alignup.align.reason_codes import MOVES_WOULD_HELP
from alignup.kubernetes.api import ApiClient, Query, Resource
from alignup.kubernetes.api.errors import ApiError, ForbiddenError, NotFoundError
from alignup.kubernetes.api.objects import ApiPod, PartialObject
from alignup.kubernetes.manifests.pod_decoder import ObjectPart

GATE_COMPONENT = "alignup-gate"
MAX_NAME = 253  #: characters, by the rule of the API server
MAX_MESSAGE = 1024  #: bytes, by the rule of the API server
REPEAT_SECONDS = 300.0  #: between writes of the same event
WRITES_PER_SECOND = 20.0
MAX_KNOWN = 10_000  #: pods whose last event is remembered


class EventSource(ObjectPart, frozen=True):
    component: str = ""


class PodEvent(PartialObject, frozen=True):
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    source: EventSource = EventSource()


EVENTS = Resource(type=PodEvent, kind="Event", plural="events", namespaced=True)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Note:
    pod: ApiPod
    reason: str
    message: str
    same: object  #: equal for messages that count as the same


@dataclass(frozen=True, slots=True)
class _Written:
    name: str
    note: _Note
    first: str
    count: int
    at: float


class PodEvents:
    """The writer of events of a *component*, in the background; of several about one pod, the last is written."""

    def __init__(self, client: ApiClient, component: str) -> None:
        self._client, self._component = client, component
        self._waiting: OrderedDict[str, _Note] = OrderedDict()
        self._written: OrderedDict[str, _Written] = OrderedDict()  #: uid → the last event
        self._wake = asyncio.Event()

    def note(self, pod: ApiPod, reason: str, message: str, *, same: object = None) -> None:
        """Write an event soon, unless the last one about *pod* has the same reason and *same* and is not old."""
        note = _Note(pod, reason, _shortened(message), message if same is None else same)
        last = self._written.get(pod.metadata.uid)
        if last is None or not _alike(last.note, note) or self._client.timing.clock() - last.at >= REPEAT_SECONDS:
            self._waiting[pod.metadata.uid] = note
            self._wake.set()

    @property
    def waiting(self) -> int:
        """How many pods have events that are not written yet."""
        return len(self._waiting)

    def forget(self, uid: str) -> None:
        """Drop the events of a pod that is gone or released, also one that is not written yet."""
        self._waiting.pop(uid, None)
        self._written.pop(uid, None)

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                uid, note = self._waiting.popitem(last=False)
                try:
                    await self._write(uid, note)
                except ApiError as error:
                    _log.warning("cannot write an event", pod=note.pod.metadata.full_name, uid=uid, problem=str(error))
                await self._client.timing.sleep(1 / WRITES_PER_SECOND)

    async def _write(self, uid: str, note: _Note) -> None:
        timing = self._client.timing
        now = datetime.fromtimestamp(timing.time_of_day(), UTC)
        last = self._written.get(uid)
        again = last is not None and _alike(last.note, note)
        if last is not None and again:
            written = replace(last, note=note, count=last.count + 1, at=timing.clock())
        else:
            written = _Written(_event_name(note.pod, now), note, _timestamp(now), 1, timing.clock())
        self._written.pop(uid, None)
        self._written[uid] = written
        while len(self._written) > MAX_KNOWN:
            self._written.popitem(last=False)
        try:
            await self._send(written, now, again=again)
        except Exception:
            if self._written.get(uid) is written:  # an event that nobody can read keeps no other back
                del self._written[uid]
                self._written |= {} if last is None else {uid: last}
            raise

    async def _send(self, written: _Written, now: datetime, *, again: bool) -> None:
        note, namespace = written.note, written.note.pod.metadata.namespace
        if again:
            patch = {"count": written.count, "lastTimestamp": _timestamp(now), "message": note.message}
            try:
                await self._client.patch(EVENTS.at(written.name, namespace=namespace), patch)
            except NotFoundError:  # events expire
                written = replace(written, first=_timestamp(now))
            else:
                return
        await self._client.create(EVENTS, _event(written, now, self._component), namespace=namespace)


async def read_reports(client: ApiClient, pod: ApiPod) -> tuple[str, ...]:
    """Return what the gate last reported about a pod that waits, and which moves were proposed, in sentences.

    Nothing is returned that was not reported, or may not be read.
    """
    query = Query(namespace=pod.metadata.namespace, fields=f"involvedObject.uid={pod.metadata.uid}")
    try:
        listed = (await client.list(EVENTS, query)).items
    except (ForbiddenError, NotFoundError):
        return ()
    events = sorted(listed, key=lambda event: event.last_timestamp or "", reverse=True)
    by_gate = [event.message for event in events if event.source.component == GATE_COMPONENT][:1]
    proposed = [event.message for event in events if event.reason == MOVES_WOULD_HELP][:1]
    return (*[f"The gate reported: {message}" for message in by_gate], *proposed)


def _event_name(pod: ApiPod, now: datetime) -> str:
    """Return a name that no other event has; that of a pod can be too long to be the whole beginning."""
    suffix = f".{int(now.timestamp() * 1e6):x}"
    return pod.metadata.name[: MAX_NAME - len(suffix)].rstrip("-.") + suffix


def _event(written: _Written, now: datetime, component: str) -> dict[str, object]:
    note, metadata = written.note, written.note.pod.metadata
    return {
        "metadata": {"name": written.name, "namespace": metadata.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
        },
        "type": "Warning",
        "reason": note.reason,
        "message": note.message,
        "source": {"component": component},
        "firstTimestamp": written.first,
        "lastTimestamp": _timestamp(now),
        "count": written.count,
    }


def _alike(note: _Note, other: _Note) -> bool:
    return (note.reason, note.same) == (other.reason, other.same)


def _timestamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _shortened(message: str) -> str:
    encoded = message.encode()
    return message if len(encoded) <= MAX_MESSAGE else encoded[: MAX_MESSAGE - 3].decode("utf-8", "ignore") + "…"
