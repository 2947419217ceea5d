"""Metrics for Prometheus in its text format, and the probes of the kubelet, which every program serves.

A program has one metrics object, whose ``registry`` holds everything that ``/metrics`` shows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from alignup.web.paging import gather_items
from alignup.web.responses import HEADERS, make_app

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SeriesKey = tuple[str, ...]  #: the name of a metric and its label values, in the order of its labels
CounterDefinitions = Mapping[str, tuple[tuple[str, ...], str]]  #: name → labels and help
Problems = Callable[[], tuple[str, ...]]


class CounterSet(Collector):
    """Counters under any name: ``prometheus_client`` appends ``_total``, which some of the kubelet's names lack."""

    def __init__(self, definitions: CounterDefinitions, *, initial: Iterable[SeriesKey] = ()) -> None:
        self._definitions = definitions
        self.values: Counter[SeriesKey] = Counter(dict.fromkeys(initial, 0))

    def collect(self) -> Iterator[Metric]:
        for name, (labels, documentation) in self._definitions.items():
            family = Metric(name, documentation, "counter")
            for series, value in sorted(self.values.items()):
                if series[0] == name:
                    family.add_sample(name, dict(zip(labels, series[1:], strict=True)), value)
            if family.samples:
                yield family


class CallbackCollector(Collector):
    """Metrics that *families* returns on every scrape."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def metrics_lines(registry: CollectorRegistry) -> Iterator[str]:
    """Yield the metrics in the text format, without the times at which series were created."""
    for family in registry.collect():
        samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        if not samples:
            continue
        name = samples[0].name if family.type == "counter" else family.name
        kind = "untyped" if family.type == "unknown" else family.type
        documentation = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        yield f"# HELP {name} {documentation}\n# TYPE {name} {kind}\n"
        for sample in samples:
            labels = ",".join(f'{key}="{_label(key, value)}"' for key, value in sorted(sample.labels.items()))
            yield f"{sample.name}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}\n"


def _label(key: str, value: str) -> str:
    if key == "le":
        return _number(float(value))
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)


async def metrics_response(registry: CollectorRegistry) -> Response:
    """Return the metrics; other requests are served while there are many."""
    lines = await gather_items(metrics_lines(registry))
    return Response("".join(lines).encode(), media_type=CONTENT_TYPE, headers=HEADERS)


def health_routes(
    registry: CollectorRegistry, *, readiness: Problems, liveness: Problems = tuple, warnings: Problems = tuple
) -> list[BaseRoute]:
    """Build ``/healthz``, ``/readyz`` and ``/metrics``; the first two say why the program is not alive or not ready.

    ``/readyz`` also has the *warnings*, with which the program is ready.
    """

    async def healthz(_request: Request) -> Response:
        return _probe(liveness())

    async def readyz(_request: Request) -> Response:
        return _probe(readiness(), warnings())

    async def metrics(_request: Request) -> Response:
        return await metrics_response(registry)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]


def health_app(
    registry: CollectorRegistry, *, readiness: Problems, liveness: Problems = tuple, warnings: Problems = tuple
) -> Starlette:
    """Build an application for probes and Prometheus only."""
    return make_app(health_routes(registry, readiness=readiness, liveness=liveness, warnings=warnings))


def _probe(problems: tuple[str, ...], warnings: tuple[str, ...] = ()) -> Response:
    lines = (*(problems or ("ok",)), *warnings)
    return PlainTextResponse("".join(f"{line}\n" for line in lines), status_code=503 if problems else 200)
