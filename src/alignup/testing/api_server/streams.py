"""Lists in pages and watches, and the selectors of both."""

import asyncio
import base64
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from alignup.testing.api_server.faults import StatusProblem, dump
from alignup.testing.api_server.http_server import HttpConnection
from alignup.testing.api_server.store import ObjectStore, ServedResource, StoredChange, StoredObject

Matches = Callable[[Mapping[str, Any]], bool]

_SET = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s+(?P<not>not)?in\s*\((?P<values>[^)]*)\)\s*")
_EQUALITY = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s*(?P<operator>==|!=|=)\s*(?P<value>[^\s,()]*)\s*")
_EXISTENCE = re.compile(r"\s*(?P<not>!)?\s*(?P<key>[^\s!=,()]+)\s*")


def selector(labels: str, fields: str) -> Matches:
    """Return a test whether an object matches both selectors; :class:`StatusProblem` if one is malformed."""
    by_label = [_requirement(text, sets=True) for text in _parts(labels)]
    by_field = [_requirement(text, sets=False) for text in _parts(fields)]

    def matches(obj: Mapping[str, Any]) -> bool:
        present = obj["metadata"].get("labels") or {}
        return all(test(present.get(key)) for key, test in by_label) and all(
            test(str(_field(obj, key))) for key, test in by_field
        )

    return matches


def _parts(text: str) -> list[str]:
    """Split at commas outside of parentheses."""
    return [part for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _requirement(text: str, *, sets: bool) -> tuple[str, Callable[[str | None], bool]]:
    if sets and (match := _SET.fullmatch(text)):
        values = {value.strip() for value in match["values"].split(",")}
        return match["key"], lambda value: (value in values) is not bool(match["not"])
    if match := _EQUALITY.fullmatch(text):
        wanted, equal = match["value"], match["operator"] != "!="
        return match["key"], lambda value: (value == wanted) is equal
    if sets and (match := _EXISTENCE.fullmatch(text)):
        return match["key"], lambda value: (value is None) is bool(match["not"])
    raise StatusProblem(400, f"unable to parse requirement: {text.strip()}")


def _field(obj: Mapping[str, Any], path: str) -> object:
    """Return the value at a path such as ``spec.nodeName``; empty if it is absent. Servers know only some paths."""
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return "" if value is None else value


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects a list or watch is about."""

    resource: ServedResource
    namespace: str  #: empty: all
    matches: Matches

    @classmethod
    def of(cls, resource: ServedResource, namespace: str, parameters: Mapping[str, str]) -> "Selection":
        labels, fields = parameters.get("labelSelector", ""), parameters.get("fieldSelector", "")
        return cls(resource, namespace, selector(labels, fields))

    def objects(self, store: ObjectStore) -> list[StoredObject]:
        return [stored for stored in store.objects(self.resource, self.namespace) if self.matches(stored.document)]

    def event(self, change: StoredChange) -> tuple[str, StoredObject] | None:
        """Return the event that a watch gets: an object that no longer matches counts as deleted."""
        known = change.new or change.old
        if change.resource != self.resource or known is None or (self.namespace and known.key[0] != self.namespace):
            return None
        before = change.old is not None and self.matches(change.old.document)
        after = change.new is not None and self.matches(change.new.document)
        if not before and not after:
            return None
        if change.old is not None and change.new is not None and not after:  # its last matching version
            metadata = {**change.old.document["metadata"], "resourceVersion": str(change.revision)}
            known = StoredObject({**change.old.document, "metadata": metadata})
        return ("DELETED" if not after else "MODIFIED" if before else "ADDED"), known


@dataclass
class PagedLists:
    """Lists whose pages all have the objects of one revision."""

    store: ObjectStore
    _snapshots: dict[str, tuple[int, list[StoredObject]]] = field(default_factory=dict)  #: the rest, by token
    _tokens: int = 0

    def page(self, selection: Selection, parameters: Mapping[str, str]) -> bytes:
        limit = int(parameters.get("limit") or 0)
        token = parameters.get("continue", "")
        if token:
            if token not in self._snapshots:
                raise StatusProblem(
                    410, "The provided continue parameter is too old to display a consistent list result."
                )
            revision, objects = self._snapshots[token]
        else:
            revision, objects = self.store.revision, selection.objects(self.store)
        metadata: dict[str, object] = {"resourceVersion": str(revision)}
        if limit and len(objects) > limit:
            self._tokens += 1
            following = base64.urlsafe_b64encode(json.dumps([revision, self._tokens]).encode()).decode()
            self._snapshots[following] = (revision, objects[limit:])
            metadata |= {"continue": following, "remainingItemCount": len(objects) - limit}
            objects = objects[:limit]
        kind = {
            "apiVersion": selection.resource.api_version,
            "kind": f"{selection.resource.kind}List",
            "metadata": metadata,
        }
        return dump(kind)[:-1] + b',"items":[' + b",".join(stored.text for stored in objects) + b"]}"

    def expire(self) -> None:
        self._snapshots.clear()


class WatchStream:
    """One watch of a client."""

    def __init__(self, store: ObjectStore, selection: Selection, connection: HttpConnection) -> None:
        self._store, self._selection, self._connection = store, selection, connection
        self._revision = 0  #: changes up to here have been sent
        self.chunk = 0  #: bytes that are sent at once; 0: whole events
        self.running = asyncio.Event()  #: cleared: events wait
        self.running.set()
        self._notice = asyncio.Event()
        self._bookmarks = 0  #: to be sent
        self._problem: StatusProblem | None = None
        self._ended = False

    def bookmark(self) -> None:
        self._bookmarks += 1
        self._notice.set()

    def fail(self, problem: StatusProblem) -> None:
        """Send an ERROR event, and end."""
        self._problem = problem
        self.end()

    def end(self) -> None:
        self._ended = True
        self._notice.set()

    async def serve(self, parameters: Mapping[str, str]) -> None:
        start = parameters.get("resourceVersion") or ""
        initial = parameters.get("sendInitialEvents") == "true" or start in {"", "0"}
        self._revision = self._store.revision if initial else int(start)
        if self._revision > self._store.revision:
            message = f"Too large resource version: {start}, current: {self._store.revision}"
            raise StatusProblem(504, message, causes=[{"reason": "ResourceVersionTooLarge"}])
        objects = self._selection.objects(self._store) if initial else []
        await self._connection.begin(200, {"Transfer-Encoding": "chunked"})
        for stored in objects:
            await self._send("ADDED", stored.text)
        if parameters.get("sendInitialEvents") == "true":
            await self._send("BOOKMARK", self._bookmark({"k8s.io/initial-events-end": "true"}))
        closed = asyncio.create_task(self._connection.wait_closed())
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout(float(parameters.get("timeoutSeconds") or 3600)):
                    await self._follow(closed)
            finally:
                closed.cancel()
                await asyncio.wait([closed])  # two tasks must not read at once
        await self._connection.end()

    async def _follow(self, closed: asyncio.Task[None]) -> None:
        while not closed.done():
            await self._wait(closed, self.running)
            changed, self._notice = self._store.changed, asyncio.Event()
            try:
                for change in self._store.after(self._revision):
                    event = self._selection.event(change)
                    if event is not None:
                        await self._send(event[0], event[1].text)
                    self._revision = change.revision
            except StatusProblem as problem:
                self.fail(problem)
            while self._bookmarks:
                self._bookmarks -= 1
                await self._send("BOOKMARK", self._bookmark({}))
            if self._problem is not None:
                await self._send("ERROR", dump(self._problem.status))
            if self._ended:
                return
            if changed is self._store.changed:
                await self._wait(closed, changed, self._notice)

    async def _wait(self, closed: asyncio.Task[None], *events: asyncio.Event) -> None:
        """Wait for one of the events, or for the client to close the connection."""
        waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait([*waiting, closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _bookmark(self, annotations: dict[str, str]) -> bytes:
        resource = self._selection.resource
        metadata: dict[str, object] = {"resourceVersion": str(self._revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        return dump({"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata})

    async def _send(self, type_: str, text: bytes) -> None:
        line = b'{"type":"' + type_.encode() + b'","object":' + text + b"}\n"
        size = self.chunk or len(line)
        for start in range(0, len(line), size):
            await self._connection.send(line[start : start + size])
            if self.chunk:
                await asyncio.sleep(0)
