"""Watches, and the selectors of lists and watches."""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from alignup.testing.api_server.faults import StatusProblem
from alignup.testing.api_server.http_server import HttpConnection
from alignup.testing.api_server.routing import ApiCall
from alignup.testing.api_server.store import Document, ObjectStore, StoredChange, StoredObject

_SET = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s+(?P<not>not)?in\s*\((?P<values>[^)]*)\)\s*")
_EQUALITY = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s*(?P<operator>==|!=|=)\s*(?P<value>[^\s,()]*)\s*")
_EXISTENCE = re.compile(r"\s*(?P<not>!)?\s*(?P<key>[^\s!=,()]+)\s*")


class Selection:
    """The objects that a list or watch is about; :class:`StatusProblem` if a selector is malformed."""

    def __init__(self, call: ApiCall) -> None:
        self.resource = call.resource
        self._namespace = call.namespace  #: an empty namespace: all
        labels, fields = (call.request.parameters.get(name, "") for name in ("labelSelector", "fieldSelector"))
        self._labels = [_requirement(text, sets=True) for text in _split(labels)]
        self._fields = [_requirement(text, sets=False) for text in _split(fields)]
        if call.name:
            self._fields.append(("metadata.name", lambda name: name == call.name))

    def matches(self, document: Document) -> bool:
        labels = document["metadata"].get("labels") or {}
        return all(test(labels.get(key)) for key, test in self._labels) and all(
            test(_field(document, path)) for path, test in self._fields
        )

    def objects(self, store: ObjectStore) -> list[StoredObject]:
        return [
            stored_object
            for stored_object in store.objects(self.resource, self._namespace)
            if self.matches(stored_object.document)
        ]

    def event(self, change: StoredChange) -> tuple[str, StoredObject] | None:
        """Return the event that a watch gets: an object that no longer matches counts as deleted."""
        version = change.new or change.old
        if change.resource != self.resource or version is None or self._namespace not in {"", version.key[0]}:
            return None
        matched_before = change.old is not None and self.matches(change.old.document)
        after = change.new is not None and self.matches(change.new.document)
        if not matched_before and not after:
            return None
        if change.old is not None and change.new is not None and not after:  # its last matching version
            version = change.old.at_revision(change.revision)
        return ("DELETED" if not after else "MODIFIED" if matched_before else "ADDED"), version


def _split(selector: str) -> list[str]:
    """Split at commas outside of parentheses."""
    return [part for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def _requirement(text: str, *, sets: bool) -> tuple[str, Callable[[str | None], bool]]:
    """Return the key, and the test of its value (``None``: it is absent)."""
    if sets and (match := _SET.fullmatch(text)):
        values = {value.strip() for value in match["values"].split(",")}
        return match["key"], lambda value: (value in values) is not bool(match["not"])
    if match := _EQUALITY.fullmatch(text):
        required_value, equal = match["value"], match["operator"] != "!="
        return match["key"], lambda value: (value == required_value) is equal
    if sets and (match := _EXISTENCE.fullmatch(text)):
        return match["key"], lambda value: (value is None) is bool(match["not"])
    raise StatusProblem(400, f"unable to parse requirement: {text.strip()}")


def _field(document: Document, path: str) -> str:
    """Return the value at a path such as ``spec.nodeName``; empty if it is absent. Servers know only some paths."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)


class WatchStream:
    """One watch of a client."""

    def __init__(self, store: ObjectStore, selection: Selection, connection: HttpConnection, *, chunk: int) -> None:
        self._store = store
        self._selection = selection
        self._connection = connection
        self._chunk = chunk  #: bytes that are sent at once; 0: whole events
        self._revision = 0  #: changes up to here have been sent
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
        for stored_object in objects:
            await self._send("ADDED", stored_object.text)
        if parameters.get("sendInitialEvents") == "true":
            await self._send_bookmark(annotations={"k8s.io/initial-events-end": "true"})
        closing_task = asyncio.create_task(self._connection.wait_closed())
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout(float(parameters.get("timeoutSeconds") or 3600)):
                    await self._follow(closing_task)
            finally:
                closing_task.cancel()
                await asyncio.wait([closing_task])  # two tasks must not read at once
        await self._connection.end()

    async def _follow(self, closing_task: asyncio.Task[None]) -> None:
        while not closing_task.done():
            await self._wait(closing_task, self.running)
            notice, self._notice = self._store.changed, asyncio.Event()
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
                await self._send_bookmark()
            if self._problem is not None:
                await self._send("ERROR", msgspec.json.encode(self._problem.status))
            if self._ended:
                return
            if notice is self._store.changed:
                await self._wait(closing_task, notice, self._notice)

    async def _wait(self, closing_task: asyncio.Task[None], *events: asyncio.Event) -> None:
        """Wait for one of the events, or for the client to close the connection."""
        waiters = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait([*waiters, closing_task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiters:
                task.cancel()

    async def _send_bookmark(self, **annotations: object) -> None:
        resource, metadata = (
            self._selection.resource,
            {"resourceVersion": str(self._revision), "creationTimestamp": None},
        )
        bookmark = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {**metadata, **annotations}}
        await self._send("BOOKMARK", msgspec.json.encode(bookmark))

    async def _send(self, type_: str, text: bytes) -> None:
        line = b'{"type":"' + type_.encode() + b'","object":' + text + b"}\n"
        size = self._chunk or len(line)
        for start in range(0, len(line), size):
            await self._connection.send(line[start : start + size])
            if self._chunk:
                await asyncio.sleep(0)
