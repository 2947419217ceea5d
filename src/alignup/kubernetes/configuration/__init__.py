"""KubeletConfiguration files, and what a kubelet makes of one on a machine.

    source = unwrap(path.read_bytes(), name=path.name)            # a file, /configz, a ConfigMap, an OpenShift object
    configuration = source.read()                                 # decoding, defaults, validation
    host = Host(machine, host_settings(configuration, machine))   # reservations, policies, options
    errors = startup_errors(configuration, machine)               # everything that keeps a kubelet from starting

A kubelet stops at its first error; ``ConfigurationError.stage`` names the startup step that fails.
"""

from alignup.kubernetes.configuration.fields import Configuration, Duration, StartupStage
from alignup.kubernetes.configuration.files import (
    ConfigurationText,
    find_drop_ins,
    merge_drop_ins,
    parse_drop_in,
    unwrap,
)
from alignup.kubernetes.configuration.load import alignment_fields, parse_override, read, read_document
from alignup.kubernetes.configuration.managers import (
    NodeReservations,
    compute_node_allocatable,
    compute_reservations,
    host_settings,
    node_status,
    startup_errors,
)

__all__ = [
    "Configuration",
    "ConfigurationText",
    "Duration",
    "NodeReservations",
    "StartupStage",
    "alignment_fields",
    "compute_node_allocatable",
    "compute_reservations",
    "find_drop_ins",
    "host_settings",
    "merge_drop_ins",
    "node_status",
    "parse_drop_in",
    "parse_override",
    "read",
    "read_document",
    "startup_errors",
    "unwrap",
]
