"""The values that shells complete for options and arguments: files, machines, pods, nodes.

Names come from a running agent or cluster that answers at once; without one there are none. A completer never fails.
"""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields

import click
from click.shell_completion import CompletionItem

from alignup.align.release import RELEASES

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

#: Fields of a KubeletConfiguration that have few values.
_FIELD_VALUES = {
    "topologyManagerPolicy": ("none", "best-effort", "restricted", "single-numa-node"),
    "topologyManagerScope": ("container", "pod"),
    "cpuManagerPolicy": ("none", "static"),
    "memoryManagerPolicy": ("None", "Static"),
}
_SECONDS = 2.0  #: that a server may take; a person waits at the prompt
_SYNTHETIC = "pack:2 numa:1 core:8 pu:2"


def complete_files(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [_item(incomplete, kind="file")]


def complete_machines(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return files, and an example of a synthetic machine once its first letter is there."""
    items = [_item(incomplete, kind="file")]
    if incomplete and _SYNTHETIC.startswith(incomplete):
        # bash inserts it as it is, other shells quote it.
        is_bash = os.environ.get("_ALIGNUP_COMPLETE", "").startswith("bash")
        items.append(_item(f"'{_SYNTHETIC}'" if is_bash else _SYNTHETIC))
    return items


def complete_releases(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _starting_with(incomplete, [str(release) for release in RELEASES])


def complete_parts(names: Callable[[], Iterable[str]]) -> Completer:
    """Return a completer for a comma-separated list of *names*."""

    def complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        previous, comma, _ = incomplete.rpartition(",")
        used_names = previous.split(",")
        return _starting_with(incomplete, [f"{previous}{comma}{name}" for name in names() if name not in used_names])

    return complete


def complete_overrides(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return fields of a KubeletConfiguration, and the values of fields that have few."""
    from alignup.kubernetes.configuration.fields import Configuration  # noqa: PLC0415 - only for shells

    field, equals, _ = incomplete.partition("=")
    if equals:
        return _starting_with(incomplete, [f"{field}={value}" for value in _FIELD_VALUES.get(field, ())])
    names = [
        re.sub(r"_(\w)", lambda part: part[1].upper(), declared_field.name) for declared_field in fields(Configuration)
    ]
    return _starting_with(incomplete, [f"{name}=" for name in names])


def complete_policy_options(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from alignup.align.cpus.options import OPTION_STAGES  # noqa: PLC0415 - only for shells
    from alignup.align.settings import TOPOLOGY_SWITCHES  # noqa: PLC0415

    return _starting_with(incomplete, [f"{name}=true" for name in (*TOPOLOGY_SWITCHES, *OPTION_STAGES)])


def complete_plugin_rules(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from alignup.align.devices.plugin_rules import PluginRule  # noqa: PLC0415 - only for shells

    resource, equals, _ = incomplete.partition("=")
    return _starting_with(incomplete, [f"{resource}={rule}" for rule in PluginRule] if equals else [])


def complete_providers(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - only for shells

    return _starting_with(incomplete, [point.name for point in entry_points(group="alignup.providers")])


def complete_agent_pods(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the pods of the agent: ``name`` in the namespace default, else ``namespace/name``."""
    from alignup.cli.agent_client import AgentOptions, connect  # noqa: PLC0415 - only for shells

    names: list[str] = []
    with suppress(Exception):
        values = {name: ctx.params.get(name) for name in ("agent", "token_file", "ca_file")}
        client = connect(AgentOptions(**values), timeout=_SECONDS)
        for pod in client.pods():
            full = f"{pod['namespace']}/{pod['name']}"
            names.append(pod["name"] if pod["namespace"] == "default" else full)
            if incomplete and pod["namespace"] != "default":
                names.append(pod["name"])
    return _starting_with(incomplete, names)


def complete_cluster_pods(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the pods of the namespace."""
    return _starting_with(incomplete, _cluster_names(ctx, pods=True))


def complete_cluster_nodes(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _starting_with(incomplete, _cluster_names(ctx, pods=False))


def _cluster_names(ctx: click.Context, *, pods: bool) -> list[str]:
    with suppress(Exception):
        from alignup.cli.cluster_names import read_names  # noqa: PLC0415 - only for shells

        return read_names(ctx, pods=pods, seconds=_SECONDS)
    return []


def _starting_with(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [_item(name) for name in sorted(set(names)) if name.startswith(incomplete)]


def _item(value: str, *, kind: str = "plain") -> CompletionItem:
    return CompletionItem(value, type=kind)
