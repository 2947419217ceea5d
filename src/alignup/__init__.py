"""Alignup: the NUMA nodes, CPUs, memory and devices of each container, and why.

This is the whole public library. Names are imported on first use, so that the command line starts quickly. All of them
need the standard library only, except ``load_machine``, ``load_settings`` and ``load_pods`` (from files), ``discover``
(from the running system), and ``to_document`` and ``from_document`` (decisions as JSON).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alignup.align import bits as bits
    from alignup.align.cpus.options import CpuSettings as CpuSettings
    from alignup.align.decision import Decision as Decision
    from alignup.align.decision import MergeStep as MergeStep
    from alignup.align.decision import Outcome as Outcome
    from alignup.align.decision import Placement as Placement
    from alignup.align.decision import Rejection as Rejection
    from alignup.align.decision import ResourceHints as ResourceHints
    from alignup.align.decision import Shortfall as Shortfall
    from alignup.align.devices.provider import PreferenceRequest as PreferenceRequest
    from alignup.align.errors import AlignError as AlignError
    from alignup.align.errors import ConfigurationError as ConfigurationError
    from alignup.align.errors import DocumentError as DocumentError
    from alignup.align.errors import FileError as FileError
    from alignup.align.errors import MachineError as MachineError
    from alignup.align.errors import ManifestError as ManifestError
    from alignup.align.errors import ParseError as ParseError
    from alignup.align.errors import PodError as PodError
    from alignup.align.errors import Problem as Problem
    from alignup.align.errors import ProviderError as ProviderError
    from alignup.align.errors import QuantityError as QuantityError
    from alignup.align.errors import SettingsError as SettingsError
    from alignup.align.errors import SourceError as SourceError
    from alignup.align.errors import StateError as StateError
    from alignup.align.errors import TraceError as TraceError
    from alignup.align.errors import WorkLimitError as WorkLimitError
    from alignup.align.hint import Hint as Hint
    from alignup.align.hint import Need as Need
    from alignup.align.hint import Provider as Provider
    from alignup.align.host import Host as Host
    from alignup.align.host import Settings as Settings
    from alignup.align.ledger import Ledger as Ledger
    from alignup.align.machine import Cpu as Cpu
    from alignup.align.machine import Device as Device
    from alignup.align.machine import Distances as Distances
    from alignup.align.machine import HugePages as HugePages
    from alignup.align.machine import Machine as Machine
    from alignup.align.machine import NumaNode as NumaNode
    from alignup.align.memory.reserved_memory import ReservedMemory as ReservedMemory
    from alignup.align.quantity import Quantity as Quantity
    from alignup.align.settings import FeatureGates as FeatureGates
    from alignup.align.settings import Policy as Policy
    from alignup.align.settings import Scope as Scope
    from alignup.align.settings import TopologyOptions as TopologyOptions
    from alignup.align.settings import TopologySettings as TopologySettings
    from alignup.align.workload import Container as Container
    from alignup.align.workload import Pod as Pod
    from alignup.align.workload import QoS as QoS
    from alignup.align.workload import Resources as Resources
    from alignup.align.workload.validation import accept as accept
    from alignup.documents.decisions import from_document as from_document
    from alignup.documents.decisions import to_document as to_document
    from alignup.kubernetes.configuration import load_settings as load_settings
    from alignup.kubernetes.manifests.workloads import load_pods as load_pods
    from alignup.machines import discover as discover
    from alignup.machines import load as load
    from alignup.machines import load_machine as load_machine

__version__ = "0.1.0"

#: The module of each name.
_NAMES_BY_MODULE = {
    "alignup.align.cpus.options": "CpuSettings",
    "alignup.align.decision": "Decision MergeStep Outcome Placement Rejection ResourceHints Shortfall",
    "alignup.align.devices.provider": "PreferenceRequest",
    "alignup.align.errors": (
        "AlignError ConfigurationError DocumentError FileError MachineError ManifestError ParseError PodError Problem "
        "ProviderError QuantityError SettingsError SourceError StateError TraceError WorkLimitError"
    ),
    "alignup.align.hint": "Hint Need Provider",
    "alignup.align.host": "Host Settings",
    "alignup.align.ledger": "Ledger",
    "alignup.align.machine": "Cpu Device Distances HugePages Machine NumaNode",
    "alignup.align.memory.reserved_memory": "ReservedMemory",
    "alignup.align.quantity": "Quantity",
    "alignup.align.settings": "FeatureGates Policy Scope TopologyOptions TopologySettings",
    "alignup.align.workload": "Container Pod QoS Resources",
    "alignup.align.workload.validation": "accept",
    "alignup.kubernetes.configuration": "load_settings",
    "alignup.kubernetes.manifests.workloads": "load_pods",
    "alignup.machines": "discover load load_machine",
    "alignup.documents.decisions": "from_document to_document",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}
_SUBMODULES = {"bits": "alignup.align.bits"}

__all__ = sorted((*_MODULE_OF, *_SUBMODULES))  # noqa: PLE0605 - each name is above already


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type depends on the name
    if name in _SUBMODULES:
        value: Any = import_module(_SUBMODULES[name])
    elif name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
