"""Alignup: which NUMA nodes, CPUs, memory and devices each container gets, and why.

The library on one screen. Importing it loads the standard library only; ``load`` and ``discover``, which read machines
from files and from the running system, come with what they need on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from alignup.align import bits
from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import (
    Decision,
    Outcome,
    Placement,
    Refusal,
    Shortfall,
    Step,
    Voice,
    from_document,
    to_document,
)
from alignup.align.devices import Ask
from alignup.align.errors import (
    AlignError,
    MachineError,
    ParseError,
    PodError,
    Problem,
    ProviderError,
    QuantityError,
    SettingsError,
    SourceError,
    StateError,
    WorkLimitError,
)
from alignup.align.hint import Hint
from alignup.align.host import Host, Settings
from alignup.align.ledger import Ledger
from alignup.align.machine import Cpu, Device, Distances, HugePages, Machine, NumaNode
from alignup.align.memory.reserve import ReservedMemory
from alignup.align.provider import Need, Provider
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope, TopologyOptions, TopologySettings
from alignup.align.workload import Container, Pod, QoS, Resources
from alignup.align.workload.rules import accept

if TYPE_CHECKING:
    from alignup import discover
    from alignup.discover import load

__version__ = "0.1.0.dev0"

__all__ = [
    "AlignError",
    "Ask",
    "Container",
    "Cpu",
    "CpuSettings",
    "Decision",
    "Device",
    "Distances",
    "FeatureGates",
    "Hint",
    "Host",
    "HugePages",
    "Ledger",
    "Machine",
    "MachineError",
    "Need",
    "NumaNode",
    "Outcome",
    "ParseError",
    "Placement",
    "Pod",
    "PodError",
    "Policy",
    "Problem",
    "Provider",
    "ProviderError",
    "QoS",
    "Quantity",
    "QuantityError",
    "Refusal",
    "ReservedMemory",
    "Resources",
    "Scope",
    "Settings",
    "SettingsError",
    "Shortfall",
    "SourceError",
    "StateError",
    "Step",
    "TopologyOptions",
    "TopologySettings",
    "Voice",
    "WorkLimitError",
    "accept",
    "bits",
    "discover",
    "from_document",
    "load",
    "to_document",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is asked for
    """What is loaded on first use; ``discover`` is the package of that name."""
    if name == "discover":
        return import_module("alignup.discover")
    if name == "load":
        return import_module("alignup.discover").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
