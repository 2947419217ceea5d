"""Alignup: which NUMA nodes, CPUs, memory and devices each container gets, and why.

The library on one screen. Names are loaded on first use, so that a command line starts at once; all but ``load`` and
``discover`` (machines from files and from the running system) need the standard library only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alignup import discover
    from alignup.align import bits
    from alignup.align.cpus.options import CpuSettings
    from alignup.align.decision import Decision, MergeStep, Outcome, Placement, Rejection, ResourceHints, Shortfall
    from alignup.align.devices import PreferenceRequest
    from alignup.align.distances import Distances
    from alignup.align.errors import (
        AlignError,
        ConfigurationError,
        DocumentError,
        FileError,
        MachineError,
        ManifestError,
        ParseError,
        PodError,
        Problem,
        ProviderError,
        QuantityError,
        SettingsError,
        SourceError,
        StateError,
        TraceError,
        WorkLimitError,
    )
    from alignup.align.hint import Hint
    from alignup.align.host import Host, Settings
    from alignup.align.ledger import Ledger
    from alignup.align.machine import Cpu, Device, HugePages, Machine, NumaNode
    from alignup.align.memory.reserved_memory import ReservedMemory
    from alignup.align.provider import Need, Provider
    from alignup.align.quantity import Quantity
    from alignup.align.settings import FeatureGates, Policy, Scope, TopologyOptions, TopologySettings
    from alignup.align.workload import Container, Pod, QoS, Resources
    from alignup.align.workload.validation import accept
    from alignup.discover import load
    from alignup.schema.decisions import from_document, to_document

__version__ = "0.1.0.dev0"

__all__ = [
    "AlignError",
    "ConfigurationError",
    "Container",
    "Cpu",
    "CpuSettings",
    "Decision",
    "Device",
    "Distances",
    "DocumentError",
    "FeatureGates",
    "FileError",
    "Hint",
    "Host",
    "HugePages",
    "Ledger",
    "Machine",
    "MachineError",
    "ManifestError",
    "MergeStep",
    "Need",
    "NumaNode",
    "Outcome",
    "ParseError",
    "Placement",
    "Pod",
    "PodError",
    "Policy",
    "PreferenceRequest",
    "Problem",
    "Provider",
    "ProviderError",
    "QoS",
    "Quantity",
    "QuantityError",
    "Rejection",
    "ReservedMemory",
    "ResourceHints",
    "Resources",
    "Scope",
    "Settings",
    "SettingsError",
    "Shortfall",
    "SourceError",
    "StateError",
    "TopologyOptions",
    "TopologySettings",
    "TraceError",
    "WorkLimitError",
    "accept",
    "bits",
    "discover",
    "from_document",
    "load",
    "to_document",
]

#: Where each name lives.
_HOMES = {
    "alignup.align.cpus.options": "CpuSettings",
    "alignup.align.decision": "Decision MergeStep Outcome Placement Rejection ResourceHints Shortfall",
    "alignup.align.devices": "PreferenceRequest",
    "alignup.align.distances": "Distances",
    "alignup.align.errors": (
        "AlignError ConfigurationError DocumentError FileError MachineError ManifestError ParseError PodError Problem "
        "ProviderError QuantityError SettingsError SourceError StateError TraceError WorkLimitError"
    ),
    "alignup.align.hint": "Hint",
    "alignup.align.host": "Host Settings",
    "alignup.align.ledger": "Ledger",
    "alignup.align.machine": "Cpu Device HugePages Machine NumaNode",
    "alignup.align.memory.reserved_memory": "ReservedMemory",
    "alignup.align.provider": "Need Provider",
    "alignup.align.quantity": "Quantity",
    "alignup.schema.decisions": "from_document to_document",
    "alignup.align.settings": "FeatureGates Policy Scope TopologyOptions TopologySettings",
    "alignup.align.workload": "Container Pod QoS Resources",
    "alignup.align.workload.validation": "accept",
    "alignup.discover": "load",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = {"bits": "alignup.align.bits", "discover": "alignup.discover"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is asked for
    """What *name* stands for, loaded now and kept."""
    if name in _MODULES:
        found: Any = import_module(_MODULES[name])
    elif name in _HOME:
        found = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
