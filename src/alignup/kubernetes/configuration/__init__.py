"""KubeletConfiguration files, and what a kubelet makes of one on a machine.

    source = unwrap(path.read_bytes(), name=path.name)            # a file, /configz, a ConfigMap, OpenShift's, …
    configuration = source.read()                                 # decoding, defaults, validation
    host = Host(machine, host_settings(configuration, machine))   # reservations, policies, options
    errors = startup_errors(configuration, machine)               # everything that keeps a kubelet from starting

A kubelet stops at its first error; ``ConfigurationError.stage`` names the startup step that fails.
"""

from pathlib import Path

from alignup.align.host import Settings
from alignup.align.machine import Machine
from alignup.align.release import NEWEST, find_release
from alignup.atomic_files import open_input
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


def load_settings(path: str | Path, machine: Machine, *, kubernetes_version: str = "") -> Settings:
    """Return what a kubelet with the configuration file *path* makes of *machine*.

    *kubernetes_version* is that of the kubelet (default: the newest that is known). ``SettingsError`` if it would not
    start.
    """
    if not isinstance(machine, Machine):
        raise TypeError(f"load_settings needs a Machine, not {type(machine).__name__}; alignup.load_machine reads one")
    release = find_release(kubernetes_version) if kubernetes_version else NEWEST
    with open_input(path) as file:
        source = unwrap(file.read(), name=str(path), release=release)
    return host_settings(source.read(), machine)


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
    "load_settings",
    "merge_drop_ins",
    "node_status",
    "parse_drop_in",
    "parse_override",
    "read",
    "read_document",
    "startup_errors",
    "unwrap",
]
