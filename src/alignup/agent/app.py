"""The HTTP API as an ASGI application.

Packages beside this one parse manifests and describe machines, so these functions are passed in. Slow work that changes
nothing, such as parsing YAML or drawing, runs in a thread.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from alignup.agent.latest_picture import LatestPicture
from alignup.agent.metrics import CONTENT_TYPE, Metrics
from alignup.agent.pages.agent_pages import agent_pages
from alignup.agent.routes import OPERATIONS, Operation, openapi_document
from alignup.align.errors import Problem
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.align.workload import Pod
from alignup.documents import api
from alignup.web import endpoint, responses
from alignup.web.access import AccessRules
from alignup.web.connections import ConnectionLimits
from alignup.web.endpoint import Handler, ParameterValues, ReadJsonPod, ReadPod
from alignup.web.paging import InvalidTokenError, SnapshotPager, TokenExpiredError, encode_items, gather_items
from alignup.web.responses import HEADERS, RETRY_LATER, SVG, TEXT, ProblemError, json_response
from alignup.web.sessions import Sessions
from alignup.web.streaming import EVENT_STREAM, EventSource, EventStream

MachineDocument = Callable[[Machine], Mapping[str, Any]]
Result = TypeVar("Result")

_STATUS = {"admitted": 201, "kept": 200, "waiting": 202}
#: Names in the picture come from clients; scripts in it must not run.
_SVG_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}


class AgentBackend(Protocol):
    """The agent behind the API.

    ``problems`` are why pods cannot be decided on now, each with a remedy. ``pod_views`` is a snapshot that creates
    views when they are read, admitted pods first, in admission order. ``admit`` is durable unless it is a dry run; it
    raises ``PodError``, ``NotReadyError`` or ``BusyError``. ``release`` is durable and returns the last state of the
    pod, or ``None`` for an unknown uid. When they are cancelled, what has begun takes effect nevertheless.
    ``plugins`` tells for each resource of a device plugin whether the
    plugin is connected. ``pod`` is a pod that was decided on, if the agent still has it, also when it was rejected.
    """

    @property
    def host(self) -> Host: ...
    @property
    def events(self) -> EventSource: ...
    async def problems(self) -> tuple[str, ...]: ...
    def notes(self) -> tuple[str, ...]: ...
    def pod_views(self) -> Sequence[api.PodView]: ...
    def pod_view(self, uid: str) -> api.PodView | None: ...
    async def admit(self, pod: Pod, *, dry_run: bool = False) -> api.AdmissionResult: ...
    async def release(self, uid: str) -> api.PodView | None: ...
    async def decisions(self, query: api.DecisionQuery) -> Sequence[api.StoredDecision]: ...
    async def decision(self, id_: int) -> api.StoredDecision | None: ...
    def plugins(self) -> Mapping[str, bool]: ...
    def pod(self, uid: str) -> Pod | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    body_bytes: int = 1 << 20
    body_seconds: float = 10.0  #: to receive a document
    answer_seconds: float = 60.0  #: to decide on a pod; a decision that has begun then takes effect nevertheless
    search_seconds: float = 1.0  #: for changes that would admit a pod, for its page
    heartbeat_seconds: float = 15.0  #: of silence on an event stream
    #: concurrent event streams; a quarter of the connections is left for other requests
    streams: int = field(default_factory=lambda: ConnectionLimits().within_descriptors().authenticated // 4 * 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    service: AgentBackend
    read_pod: ReadPod
    machine_document: MachineDocument
    metrics: Metrics
    version: str  #: of alignup
    read_json_pod: ReadJsonPod = lambda _: None


def build_app(
    dependencies: Dependencies,
    *,
    token: bytes | None = None,
    access: AccessRules | None = None,
    limits: RequestLimits | None = None,
    stopping: asyncio.Event | None = None,
) -> ASGIApp:
    """Build the application: the API and the pages.

    With a *token*, every request must present it; *access* are other rules. Event streams end when *stopping* is set.
    """
    access = access or AccessRules(everyone=token is None, token=token)
    description = openapi_document(version=dependencies.version, with_token=not access.everyone)
    limits = limits or RequestLimits()
    handlers = _Api(dependencies, limits, stopping or asyncio.Event(), description, access.sessions)
    by_path = defaultdict[str, dict[str, tuple[Operation, Handler]]](dict)
    for one in OPERATIONS:
        method = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", one.id)  # listPods: list_pods
        by_path[one.path][one.method] = one, getattr(handlers, method)
    endpoints = {path: endpoint.ApiEndpoint(methods, access=access) for path, methods in by_path.items()}
    routes = [Route(path, one) for path, one in endpoints.items()]
    routes += agent_pages(dependencies.service, access, search_seconds=limits.search_seconds)
    app = Starlette(routes=routes, exception_handlers={404: endpoint.not_found, Exception: endpoint.internal_error})
    app.router.redirect_slashes = False
    return endpoint.DirectPaths({path: one for path, one in endpoints.items() if "{" not in path}, app)


@dataclass(frozen=True, slots=True)
class _Api:
    """A handler for each of ``OPERATIONS``, named after its id."""

    dependencies: Dependencies
    limits: RequestLimits
    stopping: asyncio.Event
    description: Mapping[str, Any]
    sessions: Sessions
    streams: set[Receive] = field(default_factory=set)  #: open event streams
    picture: LatestPicture = field(default_factory=LatestPicture)
    pod_pages: SnapshotPager[api.PodView] = field(default_factory=lambda: SnapshotPager(responses.encode_pod_view))

    @property
    def service(self) -> AgentBackend:
        return self.dependencies.service

    async def list_pods(self, _request: Request, parameters: ParameterValues) -> Response:
        token = parameters.get("continue")
        try:
            page = await self.pod_pages.page(self.service.pod_views, limit=int(parameters["limit"]), token=token)
        except TokenExpiredError:
            raise ProblemError(410, "The token has expired; list the pods again without it.") from None
        except InvalidTokenError:
            problem = Problem("continue", "must be metadata.continue of a page")
            raise ProblemError(400, f"{problem.field}: {problem.what}", errors=[problem]) from None
        metadata = api.ListMetadata(continue_=page.token, remaining_item_count=page.remaining)
        return responses.list_response(api.PodListDocument([], self.service.notes(), metadata), page.items)

    async def admit_pod(self, request: Request, parameters: ParameterValues) -> Response:
        dry_run = bool(parameters["dryRun"])
        limits = self.limits
        pod = await endpoint.receive_pod(
            request,
            self.dependencies.read_pod,
            self.dependencies.read_json_pod,
            limit=limits.body_bytes,
            seconds=limits.body_seconds,
        )
        result = await self._within_deadline(self.service.admit(pod, dry_run=dry_run))
        document = responses.admission_document(result, dry_run=dry_run)
        if dry_run:
            return json_response(document)
        if document.outcome not in _STATUS:
            raise _rejected(document)
        headers = {"Location": f"/v1/pods/{quote(pod.uid, safe='')}"}
        return json_response(document, status=_STATUS[document.outcome], headers=headers)

    async def get_pod(self, _request: Request, parameters: ParameterValues) -> Response:
        view = self.service.pod_view(str(parameters["uid"]))
        if view is None:
            raise _no_pod(parameters["uid"])
        return json_response(responses.pod_detail_document(view))

    async def release_pod(self, _request: Request, parameters: ParameterValues) -> Response:
        view = await self._within_deadline(self.service.release(str(parameters["uid"])))
        if view is None:
            raise _no_pod(parameters["uid"])
        return json_response(api.ReleaseDocument(responses.pod_view_document(view)))

    async def create_sign_in_link(self, _request: Request, _parameters: ParameterValues) -> Response:
        if not self.sessions.base_url:
            detail = "The agent serves no pages to browsers; start it with --web-listen."
            raise ProblemError(404, detail)
        link = self.sessions.create_link()
        document = api.SignInLinkDocument(url=self.sessions.base_url + link.path, seconds=int(link.seconds))
        return json_response(document, status=201)

    async def list_decisions(self, _request: Request, parameters: ParameterValues) -> Response:
        query = api.DecisionQuery(**parameters)
        stored = await self.service.decisions(query)
        items = await encode_items(stored, responses.encode_stored_decision, limit=query.limit)
        is_last = len(items) == len(stored) < query.limit
        document = api.DecisionPageDocument([], None if is_last or not items else stored[len(items) - 1].id)
        return responses.list_response(document, items)

    async def get_decision(self, _request: Request, parameters: ParameterValues) -> Response:
        stored = await self.service.decision(int(parameters["id"]))
        if stored is None:
            raise ProblemError(404, f"The history has no decision {parameters['id']}.")
        return json_response(responses.stored_decision_detail(stored))

    async def get_machine(self, _request: Request, _parameters: ParameterValues) -> Response:
        return json_response(await asyncio.to_thread(self.dependencies.machine_document, self.service.host.machine))

    async def get_picture(self, _request: Request, _parameters: ParameterValues) -> Response:
        drawn = await self.picture.svg(self.service.host)
        return Response(drawn, media_type=SVG, headers=HEADERS | _SVG_POLICY)

    async def listen_to_events(self, request: Request, _parameters: ParameterValues) -> ASGIApp:
        if request.method == "HEAD":
            return Response(media_type=EVENT_STREAM, headers=HEADERS)
        limit = self.limits.streams
        if len(self.streams) >= limit:
            raise ProblemError(429, f"Too many event streams: the limit is {limit}.", headers=RETRY_LATER)
        stream = EventStream(
            events=self.service.events, heartbeat=self.limits.heartbeat_seconds, stopping=self.stopping
        )

        async def response(scope: Scope, receive: Receive, send: Send) -> None:
            self.streams.add(receive)
            try:
                await stream(scope, receive, send)
            finally:
                self.streams.remove(receive)

        return response

    async def is_alive(self, _request: Request, _parameters: ParameterValues) -> Response:
        return Response("ok\n", media_type=TEXT, headers=HEADERS)

    async def is_ready(self, _request: Request, _parameters: ParameterValues) -> Response:
        problems = await self.service.problems()
        if problems:
            errors = [Problem("", what) for what in problems]
            raise ProblemError(503, "The agent cannot decide on pods now.", errors=errors, headers=RETRY_LATER)
        return json_response(api.ReadyDocument())

    async def get_metrics(self, _request: Request, _parameters: ParameterValues) -> Response:
        lines = await gather_items(self.dependencies.metrics.lines())
        return Response("".join(lines).encode(), media_type=CONTENT_TYPE, headers=HEADERS)

    async def get_description(self, _request: Request, _parameters: ParameterValues) -> Response:
        return json_response(self.description)

    async def _within_deadline(self, job: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of *job*; it runs in the task of the request, which a client cannot cancel."""
        try:
            async with asyncio.timeout(self.limits.answer_seconds) as deadline:
                return await job
        except TimeoutError:
            if not deadline.expired():
                raise
            seconds = f"{self.limits.answer_seconds:g} seconds"
            raise ProblemError(
                504, f"No result after {seconds}. It may still take effect; get the pod later."
            ) from None


def _no_pod(uid: object) -> ProblemError:
    return ProblemError(404, f"No pod has the uid {uid}.")


def _rejected(result: api.AdmissionDocument) -> ProblemError:
    rejection = result.decision.rejection
    if rejection is None:  # a device plugin did not answer, so there is no decision
        return ProblemError(503, result.story[0], headers=RETRY_LATER)
    detail = f"{rejection.reason}: {rejection.message}"
    document = api.RejectionProblemDocument(
        title=HTTPStatus.CONFLICT.phrase,
        status=HTTPStatus.CONFLICT,
        detail=detail,
        errors=[],
        reason=rejection.reason,
        message=rejection.message,
        decision=result.decision,
        story=result.story,
    )
    return ProblemError(HTTPStatus.CONFLICT, detail, document=document)
