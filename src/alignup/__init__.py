"""Alignup: the NUMA nodes, CPUs, memory and devices of each container, and why.

This is the whole public library. Names are imported on first use, so that the command line starts quickly. All of them
need the standard library only, except ``load`` and ``discover`` (machines from files and from the running system) and
``to_document`` and ``from_document`` (decisions as JSON).
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

#: The module of each name.
_NAMES_BY_MODULE = {
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
    "alignup.align.settings": "FeatureGates Policy Scope TopologyOptions TopologySettings",
    "alignup.align.workload": "Container Pod QoS Resources",
    "alignup.align.workload.validation": "accept",
    "alignup.discover": "load",
    "alignup.schema.decisions": "from_document to_document",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}
_SUBMODULES = {"bits": "alignup.align.bits", "discover": "alignup.discover"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type depends on the name
    if name in _SUBMODULES:
        found: Any = import_module(_SUBMODULES[name])
    elif name in _MODULE_OF:
        found = getattr(import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
