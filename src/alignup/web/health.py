"""Probes and metrics, which the programs of a cluster serve to the kubelet and to Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from alignup.agent.metrics import CONTENT_TYPE

Problems = Callable[[], tuple[str, ...]]


def health_routes(registry: CollectorRegistry, *, readiness: Problems, liveness: Problems = tuple) -> list[Route]:
    """Build ``/healthz``, ``/readyz`` and ``/metrics``; the first two say why the program is not alive or not ready."""

    async def healthz(_request: Request) -> Response:
        return _probe(liveness())

    async def readyz(_request: Request) -> Response:
        return _probe(readiness())

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]


def _probe(problems: tuple[str, ...]) -> Response:
    text = "".join(f"{problem}\n" for problem in problems)
    return PlainTextResponse(text or "ok\n", status_code=503 if problems else 200)
