"""What a ``LiveCluster`` counts on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from alignup.align.devices.plugin_rules import PluginRule


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveClusterOptions:
    max_unconfirmed: int | None = 1  #: pods on a node with resources of their own that no report contains yet
    force_deleted_may_run: bool = False  #: whether containers of a force-deleted pod may still use their CPUs
    approximate: bool = False  #: whether NodeResourceTopology counts where a node has no HostState
    plugin_rules: Mapping[str, PluginRule] = field(default_factory=dict)  #: resource → how device plugins choose
    record: Path | None = None  #: a directory for recordings of decisions; ``None``: there are none
