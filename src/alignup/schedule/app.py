"""The HTTP endpoints of the cluster service: the scheduler extender, explanations, health and metrics."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from alignup.align.errors import ParseError, PodError
from alignup.documents.api import NotReadyError
from alignup.schedule.pages.cluster_pages import ClusterBackend, cluster_pages
from alignup.schedule.pages.predictions import PredictionHistory
from alignup.web.endpoint import receive_body
from alignup.web.health import health_routes
from alignup.web.responses import JSON, RETRY_SOON, ProblemError, json_response
from alignup.web.connection import CONNECTION, Connection

EXTENDER = "/v1/extender"  #: the path that kube-scheduler's urlPrefix ends with
VERBS = ("filter", "prioritize", "bind", "preempt")
MAX_BODY = 64 << 20  #: bytes; whole Node objects of 5,000 nodes
BODY_SECONDS = 30.0
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  #: seconds

_log = logging.getLogger(__name__)


class ScheduleBackend(Protocol):
    """The cluster service behind the endpoints.

    ``respond`` raises ``ParseError`` for a request that is not of the protocol, and ``NotReadyError`` where another
    process has to answer. ``problems`` says why this process does not serve schedulers, ``explain`` returns what every
    node answers to a pod, or ``None`` if there is no such pod.
    """

    def problems(self) -> tuple[str, ...]: ...
    async def respond(self, verb: str, body: bytes) -> bytes: ...
    def explain(self, namespace: str, name: str, node: str) -> Mapping[str, Any] | None: ...


class PrometheusScheduleMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._predictions = Counter(
            "alignup_prediction",
            "Predicted pods by what the kubelet did, and why where it was something else.",
            ["verdict", "outcome", "cause"],
            registry=self.registry,
        )
        self._requests = Histogram(
            "alignup_extender_request_duration_seconds",
            "Time to answer a request of a scheduler.",
            ["verb", "code"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._children: dict[tuple[str, int], Histogram] = {}  #: of requests, by verb and code: looking them up is slow
        self.predictions = PredictionHistory()
        for outcome in ("as_predicted", "placed_elsewhere", "rejected"):
            self._predictions.labels("admits", outcome, "")

    def prediction(self, *, outcome: str, cause: str) -> None:
        self._predictions.labels("admits", outcome, cause).inc()
        self.predictions.add(outcome)

    def request(self, verb: str, code: int, seconds: float) -> None:
        child = self._children.get((verb, code))
        if child is None:
            child = self._children[verb, code] = self._requests.labels(verb, str(code))
        child.observe(seconds)

    def collect_from(self, numbers: Callable[[], Mapping[str, tuple[str, float]]]) -> None:
        """Add what *numbers* returns: name → (description, value); names that end in _total are counters."""
        self.registry.register(_Numbers(numbers))


class _Numbers(Collector):
    def __init__(self, numbers: Callable[[], Mapping[str, tuple[str, float]]]) -> None:
        self._numbers = numbers

    def collect(self) -> Iterator[Metric]:
        for name, (description, value) in self._numbers().items():
            counter = name.endswith("_total")
            family = (CounterMetricFamily if counter else GaugeMetricFamily)(name, description)
            family.add_metric([], value)
            yield family


class _ExtenderApp:
    """Answers the verbs of the extender itself, and leaves everything else to *others*.

    A scheduler waits for every answer, and routing a request takes longer than most of them.
    """

    def __init__(
        self, backend: ScheduleBackend, metrics: PrometheusScheduleMetrics, others: ASGIApp, max_body: int
    ) -> None:
        self._backend, self._metrics, self._others, self._max_body = backend, metrics, others, max_body
        self._verbs = {f"{EXTENDER}/{verb}": verb for verb in VERBS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        verb = self._verbs.get(scope.get("path", ""))
        if verb is None or scope.get("method") != "POST":
            await self._others(scope, receive, send)
            return
        started = time.perf_counter()
        request = Request(scope, receive)
        try:
            answer = await _respond(self._backend, verb, request, self._max_body)
        except Exception as error:  # noqa: BLE001 - a defect must not end the connection without an answer
            answer = await _internal_error(request, error)
        code = 200 if isinstance(answer, bytes) else answer.status_code
        self._metrics.request(verb, code, time.perf_counter() - started)
        if isinstance(answer, bytes):
            headers = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(answer))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer})
        else:
            await answer(scope, receive, send)


def schedule_app(
    backend: ScheduleBackend,
    metrics: PrometheusScheduleMetrics,
    *,
    pages: ClusterBackend | None = None,
    stopping: asyncio.Event | None = None,
    max_body: int = MAX_BODY,
) -> ASGIApp:
    """Build the application for schedulers and users; with *pages*, also the web pages.

    Event streams end when *stopping* is set.
    """

    async def explain(request: Request) -> Response:
        where = request.path_params
        try:
            found = backend.explain(where["namespace"], where["pod"], request.query_params.get("node", ""))
        except PodError as error:
            return ProblemError(422, f"Invalid pod: {error}", errors=error.problems).response()
        if found is None:
            return ProblemError(404, f"There is no pod {where['namespace']}/{where['pod']}.").response()
        return json_response(found)

    routes = [
        *(Route(f"{EXTENDER}/{verb}", _only_post, methods=["POST"]) for verb in VERBS),
        Route("/v1/explain/{namespace}/{pod}", explain),
        *health_routes(metrics.registry, readiness=backend.problems),
        *([] if pages is None else cluster_pages(pages, metrics.predictions, stopping=stopping or asyncio.Event())),
    ]
    return _ExtenderApp(backend, metrics, _application(routes), max_body)


def health_app(backend: ScheduleBackend, metrics: PrometheusScheduleMetrics) -> Starlette:
    """Build the application for probes and Prometheus, which need no certificates."""
    return _application(health_routes(metrics.registry, readiness=backend.problems))


def _application(routes: list[Route]) -> Starlette:
    app = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _wrong_method, Exception: _internal_error})
    app.router.redirect_slashes = False
    return app


async def _respond(backend: ScheduleBackend, verb: str, request: Request, max_body: int) -> bytes | Response:
    """The answer to a scheduler, or the response to a request that fails."""
    try:
        _authenticate(request)
        body = await receive_body(request, limit=max_body, seconds=BODY_SECONDS, types=(JSON,), expected=JSON)
        return await backend.respond(verb, body)
    except ParseError as error:
        _log.warning("verb=%s problem=%s", verb, error)
        return ProblemError(400, str(error)).response()
    except NotReadyError as error:
        return ProblemError(503, str(error), headers=RETRY_SOON).response()
    except ProblemError as problem:
        return problem.response()


def _authenticate(request: Request) -> None:
    connection: Connection | None = request.scope.get(CONNECTION)
    if connection is not None and not connection.authenticate():
        raise ProblemError(503, "Too many connections.", headers=RETRY_SOON)


async def _only_post(_request: Request) -> Response:
    """Never called: a verb of the extender; the route makes other methods wrong ones."""
    raise AssertionError


async def _not_found(request: Request, _error: Exception) -> Response:
    return ProblemError(404, f"There is no {request.url.path}; see docs/scheduling.md for the endpoints.").response()


async def _wrong_method(request: Request, _error: Exception) -> Response:
    return ProblemError(405, f"This path does not support {request.method}.").response()


async def _internal_error(request: Request, error: Exception) -> Response:
    _log.error("path=%s problem=%s", request.url.path, type(error).__name__, exc_info=error)
    return ProblemError(500, "Internal error; see the log of the service.").response()
