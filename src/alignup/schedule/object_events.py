"""Events about pods and plans, for ``kubectl describe``: few, short, and the same text counted instead of repeated."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import structlog

from alignup.align.reason_codes import MOVES_WOULD_HELP
from alignup.documents.codec import timestamp
from alignup.kubernetes.api import PODS, ApiClient, Query, Resource
from alignup.kubernetes.api.errors import ApiError, ForbiddenError, NotFoundError
from alignup.kubernetes.api.objects import ApiObject, ApiPod, PartialObject
from alignup.kubernetes.manifests.pod_decoder import ObjectPart

GATE_COMPONENT = "alignup-gate"
MAX_NAME = 253  #: characters, by the rule of the API server
MAX_MESSAGE = 1024  #: bytes, by the rule of the API server
REPEAT_SECONDS = 300.0  #: between writes of the same event
WRITES_PER_SECOND = 20.0
MAX_KNOWN = 10_000  #: objects whose last event is remembered
CLUSTER_NAMESPACE = "default"  #: of events about objects without a namespace


class EventSource(ObjectPart, frozen=True):
    component: str = ""


class ApiEvent(PartialObject, frozen=True):
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    source: EventSource = EventSource()


EVENTS = Resource(type=ApiEvent, kind="Event", plural="events", namespaced=True)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Note:
    object: ApiObject
    resource: Resource[Any]
    warning: bool
    reason: str
    message: str
    same: Any  #: equal for messages that count as the same

    @property
    def name(self) -> str:
        metadata = self.object.metadata
        return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name

    @property
    def namespace(self) -> str:
        return self.object.metadata.namespace or CLUSTER_NAMESPACE


@dataclass(frozen=True, slots=True)
class _Written:
    name: str
    note: _Note
    first: str
    count: int
    at: float


class ObjectEvents:
    """The writer of events of a *component*, in the background; of several about one object, the last is written.

    *isolated* keeps what the event about one object raises from others.
    """

    def __init__(
        self, client: ApiClient, component: str, isolated: Callable[[str], AbstractContextManager[object]]
    ) -> None:
        self._client = client
        self._component = component
        self._isolated = isolated
        self._waiting: OrderedDict[str, _Note] = OrderedDict()
        self._written: OrderedDict[str, _Written] = OrderedDict()  #: uid → the last event
        self._wake = asyncio.Event()

    def note(  # noqa: PLR0913 - the parts of an event
        self,
        obj: ApiObject,
        reason: str,
        message: str,
        *,
        same: object = None,
        warning: bool = True,
        resource: Resource[Any] = PODS,
    ) -> None:
        """Write an event soon, unless the last one about *obj* has the same reason and *same* and is not old."""
        uid = obj.metadata.uid
        note = _Note(obj, resource, warning, reason, _shortened(message), message if same is None else same)
        last = self._written.get(uid)
        if last is None or not _alike(last.note, note) or self._client.timing.clock() - last.at >= REPEAT_SECONDS:
            self._waiting[uid] = note
            self._wake.set()

    @property
    def waiting(self) -> int:
        """How many objects have events that are not written yet."""
        return len(self._waiting)

    def forget(self, uid: str) -> None:
        """Drop the events of a pod that is gone or released, also an event that is not written yet."""
        self._waiting.pop(uid, None)
        self._written.pop(uid, None)

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                uid, note = self._waiting.popitem(last=False)
                with self._isolated(f"event about {note.name}"):
                    try:
                        await self._write(uid, note)
                    except ApiError as error:
                        names = {note.resource.kind.lower(): note.name, "uid": uid}
                        _log.warning("cannot write an event", **names, problem=str(error))
                await self._client.timing.sleep(1 / WRITES_PER_SECOND)

    async def _write(self, uid: str, note: _Note) -> None:
        timing = self._client.timing
        now = timing.time_of_day()
        last = self._written.get(uid)
        again = last is not None and _alike(last.note, note)
        if last is not None and again:
            event = replace(last, note=note, count=last.count + 1, at=timing.clock())
        else:
            event = _Written(_event_name(note.object, now), note, timestamp(now, timespec="seconds"), 1, timing.clock())
        self._written.pop(uid, None)
        self._written[uid] = event
        while len(self._written) > MAX_KNOWN:
            self._written.popitem(last=False)
        try:
            await self._send(event, now, again=again)
        except Exception:
            if self._written.get(uid) is event:  # an event that nobody can read keeps no other back
                del self._written[uid]
                self._written |= {} if last is None else {uid: last}
            raise

    async def _send(self, event: _Written, now: float, *, again: bool) -> None:
        note, namespace = event.note, event.note.namespace
        if again:
            patch = {"count": event.count, "lastTimestamp": timestamp(now, timespec="seconds"), "message": note.message}
            try:
                await self._client.patch(EVENTS.at(event.name, namespace=namespace), patch)
            except NotFoundError:  # events expire
                event = replace(event, first=timestamp(now, timespec="seconds"))
            else:
                return
        await self._client.create(EVENTS, _event(event, now, self._component), namespace=namespace)


async def read_reports(client: ApiClient, pod: ApiPod) -> tuple[str, ...]:
    """Return what the gate last reported about a pod that waits, and which moves were proposed, in sentences.

    Nothing is returned that was not reported, or may not be read.
    """
    query = Query(namespace=pod.metadata.namespace, fields=f"involvedObject.uid={pod.metadata.uid}")
    try:
        api_events = (await client.list(EVENTS, query)).items
    except (ForbiddenError, NotFoundError):
        return ()
    events = sorted(api_events, key=lambda event: event.last_timestamp or "", reverse=True)
    by_gate = [event.message for event in events if event.source.component == GATE_COMPONENT][:1]
    proposed = [event.message for event in events if event.reason == MOVES_WOULD_HELP][:1]
    return (*[f"The gate reported: {message}" for message in by_gate], *proposed)


def _event_name(obj: ApiObject, now: float) -> str:
    """Return a name that no other event has; the name of an object can be too long to be the whole beginning."""
    suffix = f".{int(now * 1e6):x}"
    return obj.metadata.name[: MAX_NAME - len(suffix)].rstrip("-.") + suffix


def _event(event: _Written, now: float, component: str) -> dict[str, object]:
    note, metadata = event.note, event.note.object.metadata
    return {
        "metadata": {"name": event.name, "namespace": note.namespace},
        "involvedObject": {
            "apiVersion": note.resource.api_version,
            "kind": note.resource.kind,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
        },
        "type": "Warning" if note.warning else "Normal",
        "reason": note.reason,
        "message": note.message,
        "source": {"component": component},
        "firstTimestamp": event.first,
        "lastTimestamp": timestamp(now, timespec="seconds"),
        "count": event.count,
    }


def _alike(note: _Note, other: _Note) -> bool:
    return (note.reason, note.same) == (other.reason, other.same)


def _shortened(message: str) -> str:
    encoded_message = message.encode()
    return (
        message
        if len(encoded_message) <= MAX_MESSAGE
        else encoded_message[: MAX_MESSAGE - 3].decode("utf-8", "ignore") + "…"
    )
