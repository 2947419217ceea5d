"""The agent's HTTP API and web pages as an ASGI application.

Slow work that changes nothing, such as parsing YAML or drawing, runs in a thread.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from functools import cache
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from alignup import __version__
from alignup.agent import api, routes
from alignup.agent.metrics import Metrics
from alignup.agent.parts import AgentParts
from alignup.agent.state import PodView, PodViews
from alignup.agent.transaction import Transaction
from alignup.align.errors import AlignError, ParseError, PodError, Problem
from alignup.align.host import Host
from alignup.align.workload import Pod, validation
from alignup.documents import codec
from alignup.documents.machines import machine_to_document
from alignup.kubernetes.manifests.pod_decoder import read_json_pod, read_pod_text
from alignup.kubernetes.manifests.workloads import derive_uid
from alignup.store.history import DecisionQuery
from alignup.web import responses
from alignup.web.api_operations import ApiEndpoint, Handler, Operation, ParameterValues, openapi_document, receive_body
from alignup.web.asgi_server import ConnectionLimits
from alignup.web.authentication import LINK_SECONDS, AccessRules
from alignup.web.event_streams import EventStreams
from alignup.web.metrics import metrics_response
from alignup.web.paging import InvalidTokenError, SnapshotPager, TokenExpiredError, encode_items
from alignup.web.responses import HEADERS, RETRY_LATER, SVG, TEXT, ProblemError, json_response, list_response

Result = TypeVar("Result")

_STATUS = {"admitted": 201, "kept": 200, "waiting": 202}
#: Names in the picture come from clients; scripts in it must not run.
_SVG_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
_INLINE_BYTES = 16 << 10  #: parsing JSON up to this size takes less time than a thread switch


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    body_bytes: int = 1 << 20
    body_seconds: float = 10.0  #: to receive a document
    answer_seconds: float = 60.0  #: to decide on a pod; a decision that has begun then takes effect nevertheless
    search_seconds: float = 1.0  #: for changes that would admit a pod, for its page
    heartbeat_seconds: float = 15.0  #: of silence on an event stream
    #: concurrent event streams; a quarter of the connections is left for other requests
    streams: int = field(default_factory=lambda: ConnectionLimits().within_descriptors().authenticated // 4 * 3)


def build_app(
    agent: AgentParts,
    metrics: Metrics,
    *,
    access: AccessRules,
    limits: RequestLimits | None = None,
    stopping: asyncio.Event | None = None,
) -> ASGIApp:
    """Build the application: the API and the pages. Event streams end when *stopping* is set."""
    limits = limits or RequestLimits()
    streams = EventStreams(
        agent.event_bus.subscribe,
        limit=limits.streams,
        heartbeat=limits.heartbeat_seconds,
        stopping=stopping or asyncio.Event(),
    )
    handlers = _Handlers(agent, metrics, limits, streams, access)
    by_path = defaultdict[str, dict[str, tuple[Operation, Handler]]](dict)
    for operation, handler in handlers.operations():
        by_path[operation.path][operation.method] = operation, handler
    endpoints = {path: ApiEndpoint(methods, access=access) for path, methods in by_path.items()}
    variable_paths = [Route(path, endpoint) for path, endpoint in endpoints.items() if "{" in path]
    variable = responses.make_app(variable_paths, {404: _not_found})

    @cache
    def pages() -> ASGIApp:
        from alignup.agent.pages import page_app  # noqa: PLC0415 - takes 4 MB, and few agents are asked for a page

        return page_app(agent, access, search_seconds=limits.search_seconds)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        endpoint = endpoints.get(path) or (variable if path.startswith("/v1/") else pages())
        await endpoint(scope, receive, send)

    return dispatch


async def _not_found(request: Request, _error: Exception) -> Response:
    return ProblemError(404, f"There is no {request.url.path}; see /openapi.json for the API.").response()


class _LatestPicture:
    """The picture of one machine, drawn again when the ledger has changed; it has the devices of the ledger."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._ledger: object = None  #: of the picture; ledgers are values, so it stays as it was drawn
        self._svg = b""

    async def draw(self, host: Host) -> bytes:
        async with self._lock:
            if host.ledger is not self._ledger:
                from alignup.picture.machine_svg import draw_svg  # noqa: PLC0415 - as the pages

                svg = await asyncio.to_thread(draw_svg, host.machine, host.ledger)
                self._svg = svg.encode("utf-8", "replace")
                self._ledger = host.ledger
            return self._svg


@dataclass(frozen=True, slots=True)
class _Handlers:
    """The handlers of the API's operations."""

    agent: AgentParts
    metrics: Metrics
    limits: RequestLimits
    streams: EventStreams
    access: AccessRules
    picture: _LatestPicture = field(default_factory=_LatestPicture)
    pod_pages: SnapshotPager[PodView] = field(
        default_factory=lambda: SnapshotPager(lambda view: codec.encode(api.pod_view_document(view)))
    )

    def operations(self) -> list[tuple[Operation, Handler]]:
        """Return all operations, in the order of the OpenAPI document."""
        return [
            (routes.LIST_PODS, self.list_pods),
            (routes.ADMIT_POD, self.admit_pod),
            (routes.GET_POD, self.get_pod),
            (routes.RELEASE_POD, self.release_pod),
            (routes.CREATE_SIGN_IN_LINK, self.create_sign_in_link),
            (routes.LIST_DECISIONS, self.list_decisions),
            (routes.GET_DECISION, self.get_decision),
            (routes.GET_MACHINE, self.get_machine),
            (routes.GET_PICTURE, self.get_picture),
            (routes.LISTEN_TO_EVENTS, self.listen_to_events),
            (routes.IS_ALIVE, self.is_alive),
            (routes.IS_READY, self.is_ready),
            (routes.GET_METRICS, self.get_metrics),
            (routes.GET_DESCRIPTION, self.get_description),
        ]

    async def list_pods(self, _request: Request, parameters: ParameterValues) -> Response:
        token = parameters.get("continue")
        try:
            page = await self.pod_pages.page(
                lambda: PodViews(self.agent.queue.state), limit=int(parameters["limit"]), token=token
            )
        except TokenExpiredError:
            raise ProblemError(410, "The token has expired; list the pods again without it.") from None
        except InvalidTokenError:
            problem = Problem("continue", "must be metadata.continue of a page")
            raise ProblemError(400, f"{problem.field}: {problem.message}", errors=[problem]) from None
        metadata = api.ListMetadata(continue_=page.token, remaining_item_count=page.remaining)
        return list_response(api.PodListDocument([], self.agent.notes, metadata), page.items)

    async def admit_pod(self, request: Request, parameters: ParameterValues) -> Response:
        dry_run = bool(parameters["dryRun"])
        content = await receive_body(request, limit=self.limits.body_bytes, seconds=self.limits.body_seconds)
        pod = await _decode_pod(content)
        allocator = self.agent.allocator
        result = await self._within_deadline(allocator.dry_run(pod) if dry_run else allocator.admit(pod))
        document = api.admission_document(result, dry_run=dry_run)
        if dry_run:
            return json_response(document)
        if document.outcome not in _STATUS:
            raise _rejected(document)
        headers = {"Location": f"/v1/pods/{quote(pod.uid, safe='')}"}
        return json_response(document, status=_STATUS[document.outcome], headers=headers)

    async def get_pod(self, _request: Request, parameters: ParameterValues) -> Response:
        view = self.agent.queue.state.pod_view(str(parameters["uid"]))
        if view is None:
            raise _no_pod(parameters["uid"])
        return json_response(api.pod_detail_document(view))

    async def release_pod(self, _request: Request, parameters: ParameterValues) -> Response:
        view = await self._within_deadline(self.agent.queue.run(Transaction.release, str(parameters["uid"])))
        if view is None:
            raise _no_pod(parameters["uid"])
        return json_response(api.ReleaseDocument(api.pod_view_document(view)))

    async def create_sign_in_link(self, _request: Request, _parameters: ParameterValues) -> Response:
        if not self.access.sessions.base_url:
            raise ProblemError(404, "The agent serves no pages to browsers: it has no web address.")
        url = self.access.sessions.base_url + self.access.sessions.create_link()
        document = api.SignInLinkDocument(url=url, seconds=int(LINK_SECONDS))
        return json_response(document, status=201)

    async def list_decisions(self, _request: Request, parameters: ParameterValues) -> Response:
        query = DecisionQuery(**parameters)
        entries = await self.agent.decisions(query)
        items = await encode_items(entries, lambda entry: codec.encode(api.stored_decision(entry)), limit=query.limit)
        is_last = len(items) == len(entries) < query.limit
        document = api.DecisionPageDocument([], None if is_last or not items else entries[len(items) - 1].id)
        return list_response(document, items)

    async def get_decision(self, _request: Request, parameters: ParameterValues) -> Response:
        entry = await self.agent.decision(int(parameters["id"]))
        if entry is None:
            raise ProblemError(404, f"The history has no decision {parameters['id']}.")
        return json_response(api.stored_decision_detail(entry))

    async def get_machine(self, _request: Request, _parameters: ParameterValues) -> Response:
        return json_response(await asyncio.to_thread(machine_to_document, self.agent.queue.state.shown_host().machine))

    async def get_picture(self, _request: Request, _parameters: ParameterValues) -> Response:
        picture = await self.picture.draw(self.agent.queue.state.shown_host())
        return Response(picture, media_type=SVG, headers=HEADERS | _SVG_POLICY)

    async def listen_to_events(self, request: Request, _parameters: ParameterValues) -> ASGIApp:
        return self.streams.response(request)

    async def is_alive(self, _request: Request, _parameters: ParameterValues) -> Response:
        return Response("ok\n", media_type=TEXT, headers=HEADERS)

    async def is_ready(self, _request: Request, _parameters: ParameterValues) -> Response:
        problems = await self.agent.probe.problems()
        if problems:
            errors = [Problem("", problem) for problem in problems]
            raise ProblemError(503, "The agent cannot decide on pods now.", errors=errors, headers=RETRY_LATER)
        return json_response(api.ReadyDocument())

    async def get_metrics(self, _request: Request, _parameters: ParameterValues) -> Response:
        return await metrics_response(self.metrics.registry)

    async def get_description(self, _request: Request, _parameters: ParameterValues) -> Response:
        document = openapi_document(
            [operation for operation, _ in self.operations()],
            title="alignup",
            description="Admit pods to the NUMA nodes, CPUs, memory and devices of one node, and explain why.",
            version=__version__,
            with_token=not self.access.everyone,
        )
        return json_response(document)

    async def _within_deadline(self, job: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of *job*; it runs in the task of the request, which a client cannot cancel."""
        try:
            async with asyncio.timeout(self.limits.answer_seconds) as deadline:
                return await job
        except TimeoutError:
            if not deadline.expired():
                raise
            detail = (
                f"No result after {self.limits.answer_seconds:g} seconds. It may still take effect; get the pod later."
            )
            raise ProblemError(504, detail) from None


async def _decode_pod(content: bytes) -> Pod:
    """Return the pod in a request; usual ones in JSON are read at once, others in a thread."""
    try:
        pod = read_json_pod(content) if len(content) <= _INLINE_BYTES else None
        if pod is None:
            return await asyncio.to_thread(read_pod, content)  # a small YAML document can expand to a huge one
        return _accept(pod)
    except PodError:
        raise
    except (ParseError, UnicodeDecodeError, RecursionError) as error:
        detail = f"The document is not valid JSON or YAML: {error}"
        raise ProblemError(400, detail, errors=[Problem("", str(error))]) from error
    except AlignError as error:
        raise ProblemError(422, str(error), errors=[Problem("", str(error))]) from error


def read_pod(content: bytes) -> Pod:
    """Read the pod of a request, with the API server's defaults."""
    return _accept(read_pod_text(content))


def _accept(pod: Pod) -> Pod:
    """Validate *pod*; without a uid it gets one derived from its namespace and name."""
    accepted_pod = validation.accept(pod)
    if accepted_pod.uid:
        return accepted_pod
    return replace(accepted_pod, uid=derive_uid("Pod", accepted_pod.namespace, accepted_pod.name))


def _no_pod(uid: object) -> ProblemError:
    return ProblemError(404, f"No pod has the uid {uid}.")


def _rejected(result: api.AdmissionDocument) -> ProblemError:
    rejection = result.decision.rejection
    if rejection is None:  # a device plugin did not answer, so there is no decision
        return ProblemError(503, result.explanation[0], headers=RETRY_LATER)
    detail = f"{rejection.reason}: {rejection.message}"
    document = api.RejectionProblemDocument(
        title=HTTPStatus.CONFLICT.phrase,
        status=HTTPStatus.CONFLICT,
        detail=detail,
        errors=[],
        reason=rejection.reason,
        message=rejection.message,
        decision=result.decision,
        explanation=result.explanation,
    )
    return ProblemError(HTTPStatus.CONFLICT, detail, document=document)
