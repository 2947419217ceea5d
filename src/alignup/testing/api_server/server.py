"""An API server for tests: Kubernetes' protocol over real HTTP, without etcd, validation or controllers."""

import asyncio
import json
import ssl
import uuid
from pathlib import Path
from typing import Any, Self

import msgspec

from alignup.testing.api_server import operations
from alignup.testing.api_server.faults import ApiFault, StatusProblem
from alignup.testing.api_server.http_server import HttpConnection, HttpRequest, HttpServer
from alignup.testing.api_server.routing import ApiCall, ResourceTable
from alignup.testing.api_server.store import Document, ObjectStore, ServedResource, StoredObject
from alignup.testing.api_server.streams import Selection, WatchStream
from alignup.testing.script import take_fault

_HEALTH = ("/healthz", "/livez", "/readyz")
_SUCCESS = msgspec.json.encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})


class ApiServer:
    """An API server on a free port of 127.0.0.1, with no objects at first.

    ``put``, ``remove`` and ``objects`` read and write objects without a request.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0, version: str = "1.36") -> None:
        self.requests: list[HttpRequest] = []  #: in the order of their arrival
        self.tokens: set[str] | None = None  #: accepted bearer tokens; ``None``: everything is accepted
        self.streamed_lists = True  #: whether a watch may begin with a list
        self.chunk = 0  #: bytes of a watch that are sent at once; 0: whole events
        self.store = ObjectStore()
        self.resources = ResourceTable()
        self._version = version
        self._tls = tls
        self._port = port
        self._http = HttpServer(self._serve)
        self._faults: dict[tuple[str, str], ApiFault] = {}  #: by verb and resource
        self._following_pages: dict[str, tuple[int, list[StoredObject]]] = {}  #: token → revision, and the objects left
        self._watches: set[WatchStream] = set()
        self._raw: dict[str, bytes] = {}
        self._held = False
        self._changed = asyncio.Event()  #: set, and replaced, with every request and watch

    async def __aenter__(self) -> Self:
        self._port = await self._http.start(self._port, self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.stop()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    # Objects

    def serve(self, resource: ServedResource) -> None:
        """Serve one more resource; the resource of a new CustomResourceDefinition is served as well."""
        self.resources.add(resource)

    def put(self, document: Document) -> Document:
        """Create or replace an object, its status included, and return it."""
        resource = self.resources.of_kind(document["apiVersion"], document["kind"])
        metadata = {**({"namespace": "default"} if resource.namespaced else {}), **document["metadata"]}
        metadata.pop("resourceVersion", None)
        document, key = {**document, "metadata": metadata}, (metadata.get("namespace", ""), metadata["name"])
        if self.store.find(resource, key):
            return self.store.replace(resource, key, document).document
        return self.store.create(resource, document).document

    def remove(self, resource: str, name: str, *, namespace: str = "default") -> None:
        served_resource = self.resources.named(resource)
        self.store.remove(served_resource, (namespace if served_resource.namespaced else "", name))

    def objects(self, plural: str) -> list[Document]:
        return [stored_object.document for stored_object in self.store.objects(self.resources.named(plural))]

    def respond(self, path: str, body: bytes) -> None:
        """Respond to GET requests of a path, such as ``/api/v1/nodes/NAME/proxy/configz``."""
        self._raw[path] = body

    # Faults

    def inject(self, fault: ApiFault, *, verb: str = "*", resource: str = "*") -> None:
        """Apply *fault* to requests from now on.

        Verbs are those of Kubernetes' authorization: get, list, watch, create, update, patch, delete.
        """
        self._faults[verb, resource] = fault

    def disconnect(self) -> None:
        """Break every connection."""
        self._http.disconnect()

    def expire(self, *, watches: bool = False) -> None:
        """Forget the history: a watch or list that continues at an older version fails with 410.

        With *watches*, open watches fail as well.
        """
        self.store.compact()
        self._following_pages.clear()
        for watch in self._watches if watches else ():
            watch.fail(StatusProblem(410, "The resourceVersion for the provided watch is too old."))

    def end_watches(self) -> None:
        """End every watch as after its time-out."""
        for watch in self._watches:
            watch.end()

    def bookmark(self) -> None:
        """Send a bookmark to every watch."""
        for watch in self._watches:
            watch.bookmark()

    def hold(self, *, held: bool = True) -> None:
        """Send no events of watches, until they are no longer *held*."""
        self._held = held
        for watch in self._watches:
            watch.running.clear() if held else watch.running.set()

    @property
    def watches(self) -> int:
        """The number of open watches."""
        return len(self._watches)

    async def wait_watches(self, number: int) -> None:
        """Wait until so many watches are open."""
        while len(self._watches) != number:
            await self._changed.wait()

    async def wait_requests(self, method: str, path: str, times: int = 1) -> None:
        """Wait until so many requests have arrived; *path* is the end of theirs."""
        while sum(request.method == method and request.path.endswith(path) for request in self.requests) < times:
            await self._changed.wait()

    # Access

    def write_kubeconfig(self, path: Path, *, token: str = "", authority: Path | None = None) -> None:
        cluster = {"server": self.url, **({"certificate-authority": str(authority)} if authority else {})}
        context = {"cluster": "test", "user": "test"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "test", "context": context}],
        }
        path.write_text(json.dumps(config, indent=1) + "\n", "utf-8")

    # Requests

    async def _serve(self, request: HttpRequest, connection: HttpConnection) -> None:
        self.requests.append(request)
        self._wake()
        try:
            await self._respond(request, connection)
        except StatusProblem as problem:
            await connection.respond(problem.code, msgspec.json.encode(problem.status))

    async def _respond(self, request: HttpRequest, connection: HttpConnection) -> None:
        call = self.resources.parse(request)
        verb, plural = (call.verb, call.resource.plural) if call else (request.method.lower(), "")
        fault = take_fault(self._faults, (verb, plural), (verb, "*"), ("*", plural), ("*", "*"))
        if fault is not None and not fault.done and await fault.apply(connection):
            return
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            raise StatusProblem(401, "Unauthorized")
        if call is not None and call.verb == "watch":
            await self._watch(call, connection)
            return
        code, body = (200, self._read(request.path)) if call is None else self._perform(call)
        if fault is None or not fault.done or not await fault.apply(connection):
            await connection.respond(code, body)

    def _read(self, path: str) -> bytes:
        """Return what does not concern objects: discovery, versions, health, and registered responses."""
        if path in self._raw:
            return self._raw[path]
        if path in _HEALTH:
            return b"ok"
        document = self.resources.discovery_document(path)
        if path == "/version":
            major, minor = self._version.split(".")
            version = f"v{self._version}.0"
            document = {"major": major, "minor": minor, "gitVersion": version, "platform": "linux/amd64"}
        if document is None:
            raise StatusProblem(404, "the server could not find the requested resource")
        return msgspec.json.encode(document)

    async def _watch(self, call: ApiCall, connection: HttpConnection) -> None:
        parameters = call.request.parameters
        if parameters.get("sendInitialEvents") == "true" and not self.streamed_lists:
            why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            raise StatusProblem(422, f"ListOptions.meta.k8s.io is invalid: sendInitialEvents: Forbidden: {why}")
        watch = WatchStream(self.store, Selection(call), connection, chunk=self.chunk)
        if self._held:
            watch.running.clear()
        self._watches.add(watch)
        self._wake()
        try:
            await watch.serve(parameters)
        finally:
            self._watches.discard(watch)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _perform(self, call: ApiCall) -> tuple[int, bytes]:
        """Carry out a request; return the status and the body of the response."""
        store, body = self.store, _decode(call.request.body or b"{}")
        match call.verb, call.subresource:
            case "list", _:
                return 200, self._page(call)
            case "get", _:
                return 200, store.get(call.resource, call.key).text
            case "create", "binding":
                operations.bind(store, call, body)
                return 201, _SUCCESS
            case "create", "eviction":
                operations.delete(store, call, body.get("deleteOptions") or {})
                return 201, _SUCCESS
            case "create", "":
                return 201, self._created(call, operations.create(store, call, body)).text
            case "update", _:
                return 200, operations.update(store, call, body).text
            case "patch", _ if call.content_type in operations.APPLY:
                result, new = operations.apply(store, call, body)
                return (201 if new else 200), self._created(call, result).text
            case "patch", _:
                return 200, operations.patch(store, call, body).text
            case "delete", "":
                return 200, operations.delete(store, call, body).text
        raise StatusProblem(405, "the server does not allow this method on the requested resource")

    def _page(self, call: ApiCall) -> bytes:
        """Return a list, or a page of one; all pages have the objects of one revision."""
        limit, token = int(call.request.parameters.get("limit") or 0), call.request.parameters.get("continue")
        revision, objects = self.store.revision, Selection(call).objects(self.store)
        if token:
            if token not in self._following_pages:
                problem = "The provided continue parameter is too old to display a consistent list result."
                raise StatusProblem(410, problem)
            revision, objects = self._following_pages[token]
        metadata: Document = {"resourceVersion": str(revision)}
        if limit and len(objects) > limit:
            metadata |= {"continue": uuid.uuid4().hex, "remainingItemCount": len(objects) - limit}
            self._following_pages[metadata["continue"]] = (revision, objects[limit:])
            objects = objects[:limit]
        kind = {"apiVersion": call.resource.api_version, "kind": f"{call.resource.kind}List", "metadata": metadata}
        items = b",".join(stored_object.text for stored_object in objects)
        return msgspec.json.encode(kind)[:-1] + b',"items":[' + items + b"]}"

    def _created(self, call: ApiCall, stored_object: StoredObject) -> StoredObject:
        """Serve the resources of a new CustomResourceDefinition."""
        if call.resource.kind == "CustomResourceDefinition":
            self.resources.add_defined(stored_object.document)
        return stored_object


def _decode(body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StatusProblem(400, "the body of the request is not JSON") from None
