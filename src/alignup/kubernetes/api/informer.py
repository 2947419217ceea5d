"""A cache of the objects of one resource that follows the API server, with every change in order.

The objects are listed once and then watched. A watch that ends is resumed at the last resource version. If that version
is no longer available, or events do not come in order, the objects are listed again, and only the differences are
reported.

One bad object ends nothing: an object that cannot be decoded, or that a listener fails on, is logged with its name and
kept in ``unreadable`` until it changes or is gone, and the others are followed. A listener that failed on a change is
called again with back-off, or with the next change of the object.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Generic

import structlog

from alignup.kubernetes.api.client import MAX_OBJECTS, ApiClient, EventType, ObjectKey, WatchEvent
from alignup.kubernetes.api.errors import (
    ApiError,
    ApiStatusError,
    GoneError,
    InvalidObjectError,
    ServerFailureError,
    UnreachableError,
    UnreadableError,
)
from alignup.kubernetes.api.resource import ALL, Object, Query, Resource
from alignup.kubernetes.api.timing import RetryDelay

_STREAMED_LISTS = (1, 34)  #: the first version of Kubernetes in which every API server streams lists
_SHORT_WATCH = 1.0  #: seconds; a watch that ends without an event before this counts as failed

_FIRST_RETRY, _LONGEST_RETRY = 1.0, 300.0  #: seconds, after a listener has failed on a change

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Change(Generic[Object]):
    """A change of an object. ``object`` is its latest known state, ``old`` the state before.

    ``listed``: it is a difference to a new list, so the order of the events between the lists is unknown.
    """

    type: EventType
    object: Object
    old: Object | None = None
    listed: bool = False


Listener = Callable[[Change[Object]], object]


@dataclass(frozen=True, slots=True)
class _Failure(Generic[Object]):
    """A change that a listener failed on."""

    key: ObjectKey
    change: Change[Object]
    count: int  #: failures in a row

    def before(self, change: Change[Object]) -> Change[Object]:
        """Return a later change of the object, to a listener that does not know of this one."""
        if change is self.change or EventType.DELETED in {change.type, self.change.type}:
            return change
        return replace(change, type=self.change.type, old=self.change.old)


class Informer(Generic[Object]):
    """The objects that match a query, as the API server last reported them.

    Changes are applied to ``objects`` one by one, and listeners are called after each. No other task runs while the
    differences of a new list are applied, so other tasks see the objects of one resource version.

    *trim* makes the objects smaller that are kept; listeners get changed objects as they came. *longest_retry* is for
    resources that the API server may not have at all.
    """

    def __init__(
        self,
        client: ApiClient,
        resource: Resource[Object],
        query: Query = ALL,
        *,
        trim: Callable[[Object], Object] | None = None,
        longest_retry: float | None = None,
    ) -> None:
        self.resource = resource
        self.query = query
        self.error: ApiError | None = None  #: why the cache does not follow the API server now; ``None``: it does
        #: objects that cannot be decoded, which are not among ``objects``, or that a listener failed on, and why
        self.unreadable: dict[ObjectKey, str] = {}
        self.failures = 0  #: how often a listener has failed
        self._client = client
        self._trim = trim
        timing = client.timing
        self._timing = timing if longest_retry is None else replace(timing, longest_retry=longest_retry)
        self._objects: dict[ObjectKey, Object] = {}
        self.objects: Mapping[ObjectKey, Object] = MappingProxyType(self._objects)
        self._version = ""  #: the resource version to resume at; empty: list first
        self._streamed: bool | None = None  #: whether the server streams lists; ``None``: unknown
        self._listeners: list[Listener[Object]] = []
        self._list_listeners: list[Callable[[], object]] = []
        self._failed: dict[tuple[Listener[Object], str], _Failure[Object]] = {}  #: by listener and uid
        self._replacing = False  #: whether the differences of a list are applied now
        self._synced = asyncio.Event()
        self._tried = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether the objects have been listed."""
        return self._synced.is_set()

    @property
    def listing(self) -> bool:
        """Whether the objects are to be listed, for the first time or again, before the watch goes on."""
        return not self._version

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def wait_tried(self) -> None:
        """Wait until the objects have been listed, or that has failed."""
        await self._tried.wait()

    def get(self, name: str, *, namespace: str = "") -> Object | None:
        return self.objects.get((namespace, name))

    def subscribe(self, listener: Listener[Object]) -> Callable[[], None]:
        """Call *listener* with every object as an addition now, and then with every change; return how to stop that."""
        for key, obj in tuple(self._objects.items()):
            self._call(listener, key, Change(EventType.ADDED, obj))
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def subscribe_lists(self, listener: Callable[[], object]) -> None:
        """Call *listener* whenever the differences of a list have been applied, and reported one by one."""
        self._list_listeners.append(listener)

    @contextmanager
    def isolated(self, key: ObjectKey) -> Iterator[None]:
        """Log and count an error with one object, and go on after the block with the next object."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever an object causes
            self.failures += 1
            self.unreadable[key] = f"{type(error).__name__}: {error}"
            _log.exception("object ignored", kind=self.resource.kind, namespace=key[0], name=key[1])

    async def changes(self) -> AsyncGenerator[Change[Object], None]:
        """Like :meth:`subscribe`, as an iterator; changes wait until they are taken."""
        queue: asyncio.Queue[Change[Object]] = asyncio.Queue()
        stop = self.subscribe(queue.put_nowait)
        try:
            while True:
                yield await queue.get()
        finally:
            stop()

    async def run(self) -> None:
        """Follow the API server until cancelled. Errors are kept in ``error``, logged once, and retried."""
        delay = RetryDelay(self._timing)
        while True:
            try:
                if self._streamed is None:
                    self._streamed = (await self._client.version()).number >= _STREAMED_LISTS
                if not self._version and not self._streamed:
                    object_list = await self._client.list(self.resource, self.query)
                    self._replace(object_list.items, object_list.resource_version, object_list.unreadable)
                await self._watch(delay)
            except ApiError as error:
                # A server with an etcd before 3.4.25 fails to stream only when it is asked, and not with its own error.
                cannot_stream = isinstance(error, InvalidObjectError | ServerFailureError) and not self._version
                if cannot_stream and self._streamed:
                    self._streamed = False  # list in pages from now on
                    continue
                if _needs_list(error):
                    self._version = ""
                if str(error) != str(self.error):
                    _log.warning("cannot follow the API server", resource=self.resource.full_name, problem=str(error))
                self.error = error
                self._tried.set()
                at_least = error.retry_after if isinstance(error, ApiStatusError) else None
                await delay.wait(at_least=at_least or 0.0)

    async def _watch(self, delay: RetryDelay) -> None:
        """Follow one watch to its end; it begins with a streamed list if there is no version to resume at."""
        initial: dict[ObjectKey, Object] | None = None if self._version else {}
        unreadable: dict[ObjectKey, str] = {}
        clock = self._client.timing.clock
        start, received = clock(), False
        async with self._client.watch(
            self.resource, self.query, resource_version=self._version, initial=initial is not None
        ) as events:
            if initial is None:
                self._recovered()
            async for event in events:
                followed = len(self._objects) + len(self.unreadable)
                if (followed if initial is None else len(initial) + len(unreadable)) > MAX_OBJECTS:
                    raise UnreadableError(f"watch {self.resource.full_name}: more than {MAX_OBJECTS:,} objects")
                received = True
                if initial is None:
                    self._apply(event)
                    delay.reset()
                elif event.initial_events_end:
                    self._replace(initial.values(), event.resource_version, unreadable)
                    self._recovered()
                    initial = None
                else:
                    key = (event.namespace, event.name)
                    initial.pop(key, None)
                    unreadable.pop(key, None)
                    if event.problem and event.type is not EventType.DELETED:
                        unreadable[key] = event.problem
                    elif event.object is not None and event.type is not EventType.DELETED:
                        initial[key] = event.object
        if initial is not None:
            self._streamed = False
            raise UnreachableError(f"watch {self.resource.full_name}: ended before the list was complete")
        if not received and clock() - start < _SHORT_WATCH:
            raise UnreachableError(f"watch {self.resource.full_name}: ended at once")

    def _recovered(self) -> None:
        if self.error is not None:
            self.error = None
            _log.info("following the API server again", resource=self.resource.full_name)

    def _replace(self, objects: Iterable[Object], version: str, unreadable: Mapping[ObjectKey, str]) -> None:
        """Take a whole new list; report deletions first, and then the other changes in the order of their versions."""
        fresh = {(obj.metadata.namespace, obj.metadata.name): obj for obj in objects}
        self._replacing = True
        for key in [key for key in self._objects if key not in fresh]:
            self._remove(key)
        self.unreadable = {key: problem for key, problem in self.unreadable.items() if key in fresh} | dict(unreadable)
        for key, obj in sorted(fresh.items(), key=lambda item: _number(item[1].metadata.resource_version)):
            self._put(key, obj)
        self._replacing = False
        self._version = version
        self._synced.set()
        self._tried.set()
        for listener in tuple(self._list_listeners):
            with self.isolated(("", "(list)")):
                listener()

    def _apply(self, event: WatchEvent[Object]) -> None:
        key = (event.namespace, event.name)
        if event.type is EventType.BOOKMARK:
            # With an older version, events that come twice would pass for new.
            last = _number(self._version)
            if event.resource_version and (not last or _number(event.resource_version) > last):
                self._version = event.resource_version
            return
        if self._is_old(key, event.resource_version):
            return
        if event.type is EventType.DELETED or event.problem:
            self._remove(key, event.object)
            if event.type is not EventType.DELETED:
                self.unreadable[key] = event.problem
        elif event.object is not None:
            self._put(key, event.object)
        self._version = event.resource_version

    def _is_old(self, key: ObjectKey, version: str) -> bool:
        """Return whether an event came twice; if the event came late, list again: other events may be missing."""
        number, last = _number(version), _number(self._version)
        if not number or number > last:
            return False
        current = self._objects.get(key)
        if number == last or (current is not None and _number(current.metadata.resource_version) >= number):
            return True
        self._version = ""
        raise UnreadableError(f"watch {self.resource.full_name}: events out of order: {number} after {last}")

    def _put(self, key: ObjectKey, obj: Object) -> None:
        old = self._objects.get(key)
        if old is not None and old.metadata.uid != obj.metadata.uid:  # deleted and created again, unseen
            self._remove(key)
            old = None
        if old is not None and old.metadata.resource_version == obj.metadata.resource_version:
            return
        self.unreadable.pop(key, None)
        self._objects[key] = obj
        if self._trim is not None:
            with self.isolated(key):
                self._objects[key] = self._trim(obj)
        self._notify(key, Change(EventType.ADDED if old is None else EventType.MODIFIED, obj, old, self._replacing))

    def _remove(self, key: ObjectKey, last: Object | None = None) -> None:
        self.unreadable.pop(key, None)
        old = self._objects.pop(key, None)
        if old is not None:
            self._notify(key, Change(EventType.DELETED, last if last is not None else old, old, self._replacing))

    def _notify(self, key: ObjectKey, change: Change[Object]) -> None:
        for listener in tuple(self._listeners):
            self._call(listener, key, change)

    def _call(self, listener: Listener[Object], key: ObjectKey, change: Change[Object]) -> None:
        uid = change.object.metadata.uid
        failure = self._failed.pop((listener, uid), None)
        change = failure.before(change) if failure else change
        failures = self.failures
        with self.isolated(key):
            listener(change)
        if self.failures > failures:
            failure = self._failed[listener, uid] = _Failure(key, change, failure.count + 1 if failure else 1)
            seconds = min(_FIRST_RETRY * 2 ** min(failure.count - 1, 32), _LONGEST_RETRY)
            asyncio.get_running_loop().call_later(seconds, self._call_again, listener, uid, failure)
        elif failure is not None:
            self.unreadable.pop(key, None)

    def _call_again(self, listener: Listener[Object], uid: str, failure: _Failure[Object]) -> None:
        if self._failed.get((listener, uid)) is failure and listener in self._listeners:
            self._call(listener, failure.key, failure.change)


def _needs_list(error: ApiError) -> bool:
    """Return whether the watch cannot resume: its version is too old, or newer than a server that was restored."""
    newer = isinstance(error, ServerFailureError) and "ResourceVersionTooLarge" in error.causes
    return newer or isinstance(error, GoneError | InvalidObjectError)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
