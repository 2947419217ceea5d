"""The operations of the Kubernetes API that Alignup needs, on objects of any type."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar

import msgspec
import structlog

from alignup.documents.codec import decoder
from alignup.kubernetes.api.access import Access
from alignup.kubernetes.api.errors import GoneError, NotFoundError, UnreadableError, status_error
from alignup.kubernetes.api.objects import ApiPod, Metadata, ObjectMeta, PartialObject
from alignup.kubernetes.api.resource import ALL, MAX_BODY, ApiRequest, Object, ObjectRef, Query, Resource
from alignup.kubernetes.api.timing import Timing

PAGE_SIZE = 500  #: objects in one response
MANAGER = "alignup"  #: the default field manager
MAX_OBJECTS = 1_000_000  #: of a list, or followed by a watch: several times what the largest clusters have
MAX_DEPTH = 100  #: of nested lists and objects in a response that is too deep for the decoder
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_CUT = b'"(nested too deeply for alignup)"'  #: stands for what was nested too deeply
_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_log = structlog.get_logger()
_T = TypeVar("_T")

ObjectKey = tuple[str, str]  #: namespace (empty: none) and name


class PatchType(StrEnum):
    """How a patch is applied; the values are content types."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"


class EventType(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  #: nothing, up to a resource version


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[Object]):
    """An event of a watch.

    ``object`` is ``None`` for a bookmark, and for an object that cannot be decoded: ``problem`` says why.
    ``initial_events_end`` marks the bookmark after the last object of a streamed list.
    """

    type: EventType
    object: Object | None
    namespace: str
    name: str
    resource_version: str
    initial_events_end: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ObjectPage(Generic[Object]):
    """A part of a list, or the whole list; ``resource_version`` belongs to the whole list."""

    items: tuple[Object, ...]
    resource_version: str
    unreadable: Mapping[ObjectKey, str] = field(default_factory=dict)  #: objects that cannot be decoded, and why


class ServerVersion(msgspec.Struct, frozen=True):
    """The version of an API server."""

    major: str = ""
    minor: str = ""

    @property
    def number(self) -> tuple[int, int]:
        """Major and minor version; (0, 0): unknown."""
        major, minor = self.major, self.minor.rstrip("+")
        return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, Generic[_T], frozen=True):
    """All or some objects of a list."""

    items: tuple[_T, ...] | None = None
    metadata: _ListMeta = _ListMeta()


class _RawEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class ApiClient:
    """A client of one API server. Methods raise :class:`ApiError`."""

    def __init__(self, access: Access, *, timing: Timing | None = None) -> None:
        from alignup.kubernetes.api.connection import Connection  # noqa: PLC0415 - imports aiohttp: 90 ms and 10 MB

        self.access = access
        self.timing = timing or Timing()
        self._connection = Connection(access, self.timing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def get(self, ref: ObjectRef[Object]) -> Object:
        body = await self._connection.send(ApiRequest(description=f"get {ref}", path=ref.path))
        return _decode(body, ref.resource.type)

    async def find(self, ref: ObjectRef[Object]) -> Object | None:
        """Like :meth:`get`, but ``None`` if the object does not exist."""
        try:
            return await self.get(ref)
        except NotFoundError:
            return None

    async def list(self, resource: Resource[Object], query: Query = ALL) -> ObjectPage[Object]:
        """Return all objects, at one resource version."""
        try:
            pages = [page async for page in self.pages(resource, query)]
        except GoneError:  # the list took so long that its version is no longer available
            pages = [page async for page in self.pages(resource, query, size=0)]
        unreadable = {key: problem for page in pages for key, problem in page.unreadable.items()}
        return ObjectPage(tuple([obj for page in pages for obj in page.items]), pages[-1].resource_version, unreadable)

    async def pages(
        self, resource: Resource[Object], query: Query = ALL, *, size: int = PAGE_SIZE
    ) -> AsyncGenerator[ObjectPage[Object], None]:
        """Yield all objects in parts of *size*, or with 0 in one; :class:`GoneError` if that takes too long."""
        path, description = resource.path(query.namespace), f"list {resource.full_name}"
        parameters = {**query.parameters, **({"limit": str(size)} if size else {})}
        count = 0
        while True:
            request = ApiRequest(description=description, path=path, parameters=parameters)
            page, following = _decode_page(await self._connection.send(request), resource)
            count += len(page.items) + len(page.unreadable)
            if count > MAX_OBJECTS:
                raise UnreadableError(f"{description}: more than {MAX_OBJECTS:,} objects")
            yield page
            if not following:
                return
            parameters["continue"] = following

    @asynccontextmanager
    async def watch(
        self, resource: Resource[Object], query: Query = ALL, *, resource_version: str, initial: bool = False
    ) -> AsyncIterator[AsyncIterator[WatchEvent[Object]]]:
        """Yield changes after *resource_version*, until the server ends the watch, which it does after some minutes.

        With *initial*, every object comes first as an addition, and then a bookmark with ``initial_events_end``.
        """
        seconds = 2 * self.timing.spread(self.timing.watch)
        parameters = {
            **query.parameters,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        if initial:
            parameters |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        description = f"watch {resource.full_name}"
        request = ApiRequest(description=description, path=resource.path(query.namespace), parameters=parameters)
        async with self._connection.lines(request, seconds=seconds + self.timing.response) as lines:
            yield (_decode_event(line, resource, description) async for line in lines)

    async def create(self, resource: Resource[Object], document: Mapping[str, Any], *, namespace: str = "") -> Object:
        """Create an object; *namespace* is required for a namespaced one."""
        body = msgspec.json.encode({"apiVersion": resource.api_version, "kind": resource.kind, **document})
        path = resource.path(namespace)
        request = ApiRequest(description=f"create {resource.full_name}", path=path, method="POST", body=body)
        return _decode(await self._connection.send(request), resource.type)

    async def patch(
        self, ref: ObjectRef[Object], patch: object, *, patch_type: PatchType = PatchType.MERGE, manager: str = MANAGER
    ) -> Object:
        """Change some fields; a ``metadata.resourceVersion`` in the patch makes a :class:`ConflictError` possible."""
        request = ApiRequest(
            description=f"patch {ref}",
            path=ref.path,
            method="PATCH",
            parameters={"fieldManager": manager},
            body=msgspec.json.encode(patch),
            content_type=patch_type,
        )
        return _decode(await self._connection.send(request), ref.resource.type)

    async def apply(
        self, ref: ObjectRef[Object], document: Mapping[str, Any], *, manager: str = MANAGER, force: bool = True
    ) -> Object:
        """Server-side apply: create the object or change the fields in *document*; other fields of the manager go.

        Without *force*, a field that another manager owns is a :class:`ConflictError`.
        """
        return await self.apply_encoded(ref, encode_for_apply(ref, document), manager=manager, force=force)

    async def apply_encoded(
        self, ref: ObjectRef[Object], body: bytes, *, manager: str = MANAGER, force: bool = True
    ) -> Object:
        """Apply what ``encode_for_apply`` returned."""
        request = ApiRequest(
            description=f"apply {ref}",
            path=ref.path,
            method="PATCH",
            parameters={"fieldManager": manager, "force": "true" if force else "false"},
            body=body,
            content_type="application/apply-patch+yaml",  # JSON is YAML, and older servers know only this name
            idempotent=True,
        )
        return _decode(await self._connection.send(request), ref.resource.type)

    async def delete(self, ref: ObjectRef[Object], *, grace_period: int | None = None) -> None:
        """Delete an object; one that has the same name but another uid is a :class:`ConflictError`.

        A lost request is repeated if *ref* has a uid. The object may be gone by then, which is a success.
        """
        request = ApiRequest(
            description=f"delete {ref}",
            path=ref.path,
            method="DELETE",
            body=msgspec.json.encode(_delete_options(ref.uid, grace_period)),
            idempotent=bool(ref.uid),
        )
        await self._connection.send(request)

    async def bind(self, ref: ObjectRef[ApiPod], host: str, *, annotations: Mapping[str, str] | None = None) -> None:
        """Assign a pod to a Kubernetes node; *annotations* are added to the pod in the same step.

        :class:`ConflictError` if the pod is bound, is being deleted, has scheduling gates, or has another uid.
        """
        metadata: dict[str, object] = {"name": ref.name, "namespace": ref.namespace}
        if ref.uid:
            metadata["uid"] = ref.uid
        if annotations:
            metadata["annotations"] = dict(annotations)
        target = {"apiVersion": "v1", "kind": "Node", "name": host}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await self._post(ref, "binding", binding)

    async def evict(self, ref: ObjectRef[ApiPod], *, grace_period: int | None = None) -> None:
        """Delete a pod unless a disruption budget prevents it: :class:`TooManyRequestsError`."""
        options = _delete_options(ref.uid, grace_period)
        metadata = {"name": ref.name, "namespace": ref.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
        await self._post(ref, "eviction", eviction)

    async def _post(self, ref: ObjectRef[ApiPod], subresource: str, document: Mapping[str, object]) -> None:
        request = ApiRequest(
            description=f"create {subresource} of {ref}",
            path=f"{ref.path}/{subresource}",
            method="POST",
            body=msgspec.json.encode(document),
            repeat=subresource != "eviction",  # where "too many requests" is the answer of a disruption budget
        )
        await self._connection.send(request)

    async def get_raw(
        self, path: str, parameters: Mapping[str, str] | None = None, *, max_bytes: int = MAX_BODY
    ) -> bytes:
        """Return the body of any path, such as ``/api/v1/nodes/NAME/proxy/configz``.

        :class:`UnreadableError` if it has more than *max_bytes*: not every path is that of an API server.
        """
        request = ApiRequest(
            description=f"get {path}", path=path, parameters=parameters or {}, accept="*/*", max_bytes=max_bytes
        )
        return await self._connection.send(request)

    async def version(self) -> ServerVersion:
        return _decode(await self.get_raw("/version"), ServerVersion)


def encode_for_apply(ref: ObjectRef[Object], document: Mapping[str, Any]) -> bytes:
    """Encode the object *document*, with the type and the name that *ref* has."""
    resource = ref.resource
    metadata = {**document.get("metadata", {}), "name": ref.name}
    if ref.namespace:
        metadata["namespace"] = ref.namespace
    return msgspec.json.encode(
        {"apiVersion": resource.api_version, "kind": resource.kind, **document, "metadata": metadata}
    )


def _delete_options(uid: str, grace_period: int | None) -> dict[str, object]:
    options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if uid:
        options["preconditions"] = {"uid": uid}
    if grace_period is not None:
        options["gracePeriodSeconds"] = grace_period
    return options


def _decode(body: bytes | msgspec.Raw, type_: type[_T]) -> _T:
    type_decoder = decoder(type_)  # type: ignore[arg-type]  # types are hashable
    try:
        value: _T
        try:
            value = type_decoder.decode(body)
        except RecursionError:
            value = type_decoder.decode(_without_deep_values(bytes(body)))
    except _UNDECODABLE as error:
        raise UnreadableError(f"the API server sent an unreadable {type_.__name__}: {error}") from None
    return value


def _without_deep_values(body: bytes) -> bytes:
    """Return JSON with a text in place of everything that is nested more than ``MAX_DEPTH`` levels deep."""
    parts, begin, depth = [], 0, 0
    for match in _BRACKETS.finditer(body):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
            if depth == MAX_DEPTH + 1:
                parts += [body[begin : match.start()], _CUT]
        elif token in (b"}", b"]"):
            if depth == MAX_DEPTH + 1:
                begin = match.end()
            depth -= 1
    return b"".join([*parts, body[begin:]])


def _decode_page(body: bytes, resource: Resource[Object]) -> tuple[ObjectPage[Object], str]:
    """Return the objects of a response, and the token for the next part; unreadable objects are skipped, and named."""
    unreadable: dict[ObjectKey, str] = {}
    try:
        page = decoder(_Page[resource.type]).decode(body)  # type: ignore[name-defined]
        items = page.items or ()
    except _UNDECODABLE:
        page = _decode(body, _Page[msgspec.Raw])
        decoded_items = [_decode_object(item, resource) for item in page.items or ()]
        items = tuple(obj for obj, _, _ in decoded_items if obj is not None)
        unreadable = {(metadata.namespace, metadata.name): problem for _, metadata, problem in decoded_items if problem}
    return ObjectPage(items, page.metadata.resource_version, unreadable), page.metadata.next_page


def _decode_object(item: msgspec.Raw, resource: Resource[Object]) -> tuple[Object | None, Metadata, str]:
    """Return an object, its metadata, and why it cannot be decoded."""
    problem = "nested too deeply"
    if _CUT not in bytes(item):
        try:
            obj: Object = decoder(resource.type).decode(item)
        except _UNDECODABLE as error:
            problem = str(error)
        else:
            return obj, obj.metadata, ""
    try:
        metadata = _decode(item, PartialObject).metadata
    except UnreadableError:
        metadata = ObjectMeta()  # not even a name
    namespace, name = metadata.namespace, metadata.name
    _log.warning("object ignored", kind=resource.kind, namespace=namespace, name=name, problem=problem)
    return None, metadata, problem


def _decode_event(line: bytes, resource: Resource[Object], description: str) -> WatchEvent[Object]:
    event: _RawEvent = _decode(line, _RawEvent)
    if event.type == "ERROR":
        raise status_error(description, code=0, body=bytes(event.object))
    if event.type == EventType.BOOKMARK:
        metadata = _decode(event.object, PartialObject).metadata
        end = metadata.annotations.get(_INITIAL_EVENTS_END) == "true"
        return WatchEvent(EventType.BOOKMARK, None, "", "", metadata.resource_version, initial_events_end=end)
    if event.type not in EventType.__members__:
        raise UnreadableError(f"{description}: unknown event {event.type}")
    obj, meta, problem = _decode_object(event.object, resource)
    return WatchEvent(EventType(event.type), obj, meta.namespace, meta.name, meta.resource_version, problem=problem)
