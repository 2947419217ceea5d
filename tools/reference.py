"""The reference as Markdown, generated from the code: commands, HTTP interfaces, objects, metrics, configuration."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from alignup import __version__
from alignup.agent.metrics import DevicePluginMetrics, Metrics
from alignup.agent.routes import openapi_document
from alignup.align.host import Host, Settings
from alignup.gate.metrics import PrometheusGateMetrics
from alignup.machines import synthetic
from alignup.observe.app import ObserverMetrics
from alignup.schedule.app import PrometheusScheduleMetrics
from tools import configuration_reference
from tools.command_tree import CommandHelp, walk
from tools.markdown import cell, escape

_CRDS = Path(__file__).parents[1] / "deploy" / "kubernetes" / "crds"


def pages() -> dict[str, str]:
    """Return the pages by file name."""
    return {
        "commands.md": _commands_page(),
        "http.md": _http_page(),
        "objects.md": _objects_page(),
        "metrics.md": _metrics_page(),
        "configuration.md": configuration_reference.page(),
    }


def _commands_page() -> str:
    lines = ["# Commands", "", "Each command has this text in its `--help` and its manual page."]
    for command in walk():
        lines += ["", *_command_lines(command)]
    return "\n".join(lines) + "\n"


def _command_lines(command: CommandHelp) -> Iterator[str]:
    yield f"## {command.name}"
    yield from ("", f"    {command.name} {command.usage}")
    for paragraph in command.paragraphs:
        yield ""
        if paragraph.startswith("\n"):
            yield from (f"    {line}" for line in paragraph.strip("\n").splitlines())
        else:
            yield escape(paragraph)
    if command.subcommands:
        yield from ("", "| command | |", "|---|---|")
        yield from (f"| `{name}` | {cell(text)} |" for name, text in command.subcommands)
    yield from ("", "| option | |", "|---|---|")
    yield from (f"| `{cell(names)}` | {cell(text)} |" for names, text in command.options)
    if command.examples:
        yield from ("", "Examples:", "", *(f"    {line}" for line in command.examples))


def _http_page() -> str:
    document = openapi_document(version=__version__, with_token=True)
    lines = [
        "# HTTP interface of the agent",
        "",
        "The agent serves this description as OpenAPI at `/openapi.json`. [The agent](../agent.md) explains access.",
        "",
        "| request | |",
        "|---|---|",
    ]
    for path, methods in document["paths"].items():
        lines += [
            f"| `{method.upper()} {path}` | {cell(operation.get('summary', ''))} |"
            for method, operation in methods.items()
        ]
    lines += ["", "## Schemas"]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += ["", f"### {name}", "", *_property_rows(schema)]
    return "\n".join(lines) + "\n"


def _objects_page() -> str:
    lines = ["# Objects in the API server", "", "`kubectl explain` shows the same on a cluster."]
    for path in sorted(_CRDS.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            spec = document["spec"]
            for version in spec["versions"]:
                lines += ["", f"## {spec['names']['kind']} ({spec['group']}/{version['name']}, {spec['scope']})", ""]
                schema = version["schema"]["openAPIV3Schema"]
                if text := schema.get("description"):
                    lines += [escape(str(text)), ""]
                lines += _property_rows(schema)
    return "\n".join(lines) + "\n"


def _property_rows(schema: Mapping[str, Any]) -> Iterator[str]:
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    if not properties:
        yield escape(str(schema.get("description") or f"A {_type(schema)}."))
        return
    required = schema.get("required", ())
    yield from ("| field | type | |", "|---|---|---|")
    for name, inner in properties.items():
        text = cell(" ".join([*(["Required."] if name in required else []), str(inner.get("description", ""))]))
        yield f"| `{name}` | {cell(_type(inner))} | {text.strip()} |"


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


def _metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        "In the text format of Prometheus. Counters and gauges under `kubelet_` have the kubelet's names.",
    ]
    for title, registry in _registries():
        lines += ["", f"## {title}", "", "| metric | type | |", "|---|---|---|"]
        for family in sorted(registry.collect(), key=lambda one: one.name):
            name = f"{family.name.removesuffix('_total')}_total" if family.type == "counter" else family.name
            lines.append(f"| `{name}` | {family.type} | {cell(family.documentation)} |")
    return "\n".join(lines) + "\n"


def _registries() -> Iterable[tuple[str, CollectorRegistry]]:
    host = Host(synthetic.parse("numa:2 core:2 pu:1"), Settings())
    agent = Metrics(lambda: host)
    DevicePluginMetrics(agent.registry)
    schedule = PrometheusScheduleMetrics()
    PrometheusGateMetrics(schedule.registry)
    return (
        ("alignup agent", agent.registry),
        ("alignup observe", ObserverMetrics("host").registry),
        ("alignup schedule", schedule.registry),
    )
