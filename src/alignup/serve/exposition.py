"""Counters under any name, and the Prometheus text format.

``prometheus_client`` appends ``_total`` to the name of every counter; several counters of the kubelet have other names.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SeriesKey = tuple[str, ...]  #: the name of a metric and its label values, in the order of its labels
CounterDefinitions = Mapping[str, tuple[tuple[str, ...], str]]  #: name → labels and help


class Counters(Collector):
    def __init__(self, definitions: CounterDefinitions, *, initial: Iterable[SeriesKey] = ()) -> None:
        self._definitions = definitions
        self._values: Counter[SeriesKey] = Counter(dict.fromkeys(initial, 0))

    def add(self, counts: Mapping[SeriesKey, int]) -> None:
        self._values.update(counts)

    def collect(self) -> Iterator[Metric]:
        for name, (labels, documentation) in self._definitions.items():
            family = Metric(name, documentation, "counter")
            for series, value in sorted(self._values.items()):
                if series[0] == name:
                    family.add_sample(name, dict(zip(labels, series[1:], strict=True)), value)
            if family.samples:
                yield family


class CallbackCollector(Collector):
    """Collects what *families* returns at that moment."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def render(registry: CollectorRegistry) -> bytes:
    return "".join(_lines(registry)).encode()


def _lines(registry: CollectorRegistry) -> Iterator[str]:
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
