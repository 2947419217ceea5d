"""The source of the documentation site: the documents of the repository, and a reference generated from the code.

``make docs`` writes it. The site has the layout of the repository, so that links between documents work in both.
"""

import asyncio
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from alignup import __version__
from alignup.agent import routes
from alignup.agent.metrics import Metrics
from alignup.align.cpus.options import CpuSettings
from alignup.align.host import Host, Settings
from alignup.align.quantity import Quantity
from alignup.kubernetes.api import Access, ApiClient
from alignup.machines import synthetic
from alignup.nri.metrics import NriMetrics
from alignup.observe.app import ObserverMetrics
from alignup.observe.marker_steering import SteeringMetrics
from alignup.schedule.gate.service import GateServiceOptions, add_gate
from alignup.schedule.service import ScheduleService
from alignup.web.api_operations import Operation, openapi_document
from tools.command_tree import CommandHelp, walk

ROOT = Path(__file__).parents[1]
TOP = ("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "CHANGELOG.md", "RELEASING.md")


def write_source(into: Path) -> None:
    """Replace *into* by the source of the site."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(ROOT / "docs", into / "docs")
    shutil.copytree(ROOT / "examples", into / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*TOP, "LICENSE", "deploy/README.md"):
        (into / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, into / name)
    (into / "docs" / "reference").mkdir()
    for name, lines in pages().items():
        (into / "docs" / "reference" / name).write_text("\n".join(lines) + "\n", "utf-8")


def pages() -> dict[str, list[str]]:
    """Return the lines of each page of the reference by file name."""
    return {
        "commands.md": list(_commands()),
        "http.md": list(_requests()),
        "objects.md": list(_objects()),
        "metrics.md": list(_metrics()),
    }


def _commands() -> Iterator[str]:
    yield from ("# Commands", "", "Each command has this text in its `--help` and its manual page.")
    for command in walk():
        yield from ("", *_command(command))


def _command(command: CommandHelp) -> Iterator[str]:
    yield from (f"## {command.name}", "", f"    {command.name} {command.usage}")
    for paragraph in command.paragraphs:
        preformatted = paragraph.startswith("\n")
        lines = paragraph.strip("\n").splitlines()
        yield from ("", *([f"    {line}" for line in lines] if preformatted else [_escape(paragraph)]))
    if command.subcommands:
        yield from _table(("command", ""), ((f"`{name}`", text) for name, text in command.subcommands))
    yield from _table(("option", ""), ((f"`{names}`", text) for names, text in command.options))
    if command.examples:
        yield from ("", "Examples:", "", *(f"    {line}" for line in command.examples))


def _requests() -> Iterator[str]:
    operations = [value for value in vars(routes).values() if isinstance(value, Operation)]
    document = openapi_document(operations, title="alignup", description="", version=__version__, with_token=True)
    yield from ("# HTTP interface of the agent", "")
    yield "The agent serves this description as OpenAPI at `/openapi.json`. [The agent](../agent.md) explains access."
    requests = [(method, path, text) for path, methods in document["paths"].items() for method, text in methods.items()]
    yield from _table(
        ("request", ""),
        ((f"`{method.upper()} {path}`", operation.get("summary", "")) for method, path, operation in requests),
    )
    yield from ("", "## Schemas")
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from ("", f"### {name}", *_properties(schema))


def _objects() -> Iterator[str]:
    yield from ("# Objects in the API server", "", "`kubectl explain` shows the same on a cluster.")
    for path in sorted((ROOT / "deploy" / "kubernetes" / "crds").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            spec = document["spec"]
            for version in spec["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                yield from ("", f"## {spec['names']['kind']} ({spec['group']}/{version['name']}, {spec['scope']})", "")
                yield from (_escape(str(schema.get("description", ""))), *_properties(schema))


def _properties(schema: Mapping[str, Any]) -> Iterable[str]:
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    if not properties:
        return "", _escape(str(schema.get("description") or f"A {_type(schema)}."))
    required = dict.fromkeys(schema.get("required", ()), "Required. ")
    rows = [
        (f"`{name}`", _type(inner), f"{required.get(name, '')}{inner.get('description', '')}")
        for name, inner in properties.items()
    ]
    return _table(("field", "type", ""), rows)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_type, choices)))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _metrics() -> Iterator[str]:
    yield from ("# Metrics", "")
    yield "In the text format of Prometheus. Counters and gauges under `kubelet_` have the kubelet's names."
    for title, registry in _registries():
        families = sorted(registry.collect(), key=lambda family: family.name)
        rows = [(f"`{_metric_name(family)}`", family.type, family.documentation) for family in families]
        yield from ("", f"## {title}", *_table(("metric", "type", ""), rows))


def _metric_name(family: Metric) -> str:
    if family.type != "counter":
        return family.name
    return family.samples[0].name if family.samples else f"{family.name.removesuffix('_total')}_total"


def _registries() -> Iterable[tuple[str, CollectorRegistry]]:
    cpus = CpuSettings(policy="static", reservation=Quantity.parse("1"))  # some metrics exist only under this policy
    host = Host(synthetic.parse("numa:2 core:2 pu:1"), Settings(cpus=cpus))
    agent = Metrics(lambda: host)
    observer = ObserverMetrics("host")
    SteeringMetrics(observer.registry)
    schedule = asyncio.run(schedule_service())
    return (
        ("alignup agent", agent.registry),
        ("alignup nri", NriMetrics().registry),
        ("alignup observe", observer.registry),
        ("alignup schedule", schedule.metrics.registry),
    )


async def schedule_service() -> ScheduleService:
    """Make a service with a gate that is not run."""
    async with ApiClient(Access(server="http://127.0.0.1")) as client:
        service = ScheduleService(client, plans=True)
        with add_gate(service, GateServiceOptions()):
            return service


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from ("", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads))
    for row in rows:
        cells = [_escape(" ".join(text.split())).replace("|", "\\|") for text in row]
        yield f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    return text.replace("<", "&lt;")


if __name__ == "__main__":
    write_source(Path(sys.argv[1]))
