"""The HTTP endpoints of the cluster service: the scheduler extender, explanations, health and metrics."""

import asyncio
import time
from typing import TYPE_CHECKING

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from alignup.align.errors import ParseError, PodError
from alignup.schedule.metrics import PrometheusScheduleMetrics
from alignup.schedule.page_backend import LivePages
from alignup.schedule.pages import page_routes
from alignup.web.api_operations import receive_body
from alignup.web.authentication import count_authenticated
from alignup.web.metrics import health_routes
from alignup.web.responses import (
    JSON,
    RETRY_SOON,
    NotReadyError,
    ProblemError,
    internal_error,
    json_response,
    wrong_method,
)

if TYPE_CHECKING:
    from alignup.schedule.service import ScheduleService

EXTENDER = "/v1/extender"  #: the path that kube-scheduler's urlPrefix ends with
VERBS = ("filter", "prioritize", "bind", "preempt")
MAX_BODY = 64 << 20  #: bytes; whole Node objects of 5,000 nodes
BODY_SECONDS = 30.0

_log = structlog.get_logger()


class _ExtenderApp:
    """Answers the verbs of the extender itself, and leaves everything else to *others*.

    A scheduler waits for every answer, and routing a request takes longer than most of them.
    """

    def __init__(
        self, service: "ScheduleService", metrics: PrometheusScheduleMetrics, others: ASGIApp, max_body: int
    ) -> None:
        self._service, self._metrics, self._others, self._max_body = service, metrics, others, max_body
        self._verbs = {f"{EXTENDER}/{verb}": verb for verb in VERBS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        verb = self._verbs.get(scope.get("path", ""))
        if verb is None or scope.get("method") != "POST":
            await self._others(scope, receive, send)
            return
        started = time.perf_counter()
        request = Request(scope, receive)
        try:
            answer = await _respond(self._service, verb, request, self._max_body)
        except Exception as error:  # noqa: BLE001 - a defect must not end the connection without an answer
            _log.error("request failed", method="POST", path=request.url.path, exc_info=error)
            answer = await internal_error(request, error)
        code = 200 if isinstance(answer, bytes) else answer.status_code
        self._metrics.request(verb, code, time.perf_counter() - started)
        if isinstance(answer, bytes):
            headers = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(answer))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer})
        else:
            await answer(scope, receive, send)


def schedule_app(
    service: "ScheduleService",
    metrics: PrometheusScheduleMetrics,
    *,
    pages: LivePages | None = None,
    stopping: asyncio.Event | None = None,
    max_body: int = MAX_BODY,
) -> ASGIApp:
    """Build the application for schedulers and users; with *pages*, also the web pages.

    Event streams end when *stopping* is set.
    """

    async def explain(request: Request) -> Response:
        where = request.path_params
        try:
            answers = service.explain(where["namespace"], where["pod"], request.query_params.get("node", ""))
        except PodError as error:
            return ProblemError(422, f"Invalid pod: {error}", errors=error.problems).response()
        if answers is None:
            return ProblemError(404, f"There is no pod {where['namespace']}/{where['pod']}.").response()
        return json_response(answers)

    routes = [
        *(Route(f"{EXTENDER}/{verb}", _only_post, methods=["POST"]) for verb in VERBS),
        Route("/v1/explain/{namespace}/{pod}", explain),
        *health_routes(metrics.registry, readiness=service.problems),
        *([] if pages is None else page_routes(pages, metrics.predictions, stopping=stopping or asyncio.Event())),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _not_found, 405: wrong_method, Exception: internal_error})
    app.router.redirect_slashes = False
    return _ExtenderApp(service, metrics, app, max_body)


async def _respond(service: "ScheduleService", verb: str, request: Request, max_body: int) -> bytes | Response:
    """Return the answer to a scheduler, or the response to a request that fails."""
    try:
        count_authenticated(request)
        body = await receive_body(request, limit=max_body, seconds=BODY_SECONDS, types=(JSON,), expected=JSON)
        return await service.respond(verb, body)
    except ParseError as error:
        _log.warning("bad request of a scheduler", verb=verb, problem=str(error))
        return ProblemError(400, str(error)).response()
    except NotReadyError as error:
        return ProblemError(503, str(error), headers=RETRY_SOON).response()
    except ProblemError as problem:
        return problem.response()


async def _only_post(_request: Request) -> Response:
    """Never called: a verb of the extender; the route makes other methods wrong ones."""
    raise AssertionError


async def _not_found(request: Request, _error: Exception) -> Response:
    return ProblemError(404, f"There is no {request.url.path}; see docs/scheduling.md for the endpoints.").response()
