"""An operator's own KubeletConfiguration file, and what a kubelet would make of it on a machine.

    configuration = read(path.read_bytes(), name=path.name)   # load, defaults, validation
    host = Host(machine, settings(configuration, machine))    # reservations, policies, options
    for error in check(configuration, machine): ...           # all that keeps a kubelet from starting
    container_settings(configuration)                         # how containers are run

A kubelet meets errors one after the other, and the first one stops it; ``ConfigurationError.stage`` says which step
that is. ``shape`` knows the fields of the file, ``rules`` what validation wants, ``startup`` what is reserved,
``managers`` what the managers say to it, and ``containers`` how an agent runs them.
"""

from alignup.kube.configuration.containers import ContainerSettings, container_settings, ignored_fields, pods_limits
from alignup.kube.configuration.load import read
from alignup.kube.configuration.managers import host_settings, node_status, startup_errors
from alignup.kube.configuration.model import Configuration, Duration, StartupStage
from alignup.kube.configuration.node_allocatable import (
    EvictionThreshold,
    NodeReservations,
    NodeStatus,
    OverReservation,
    StartupResources,
    compute_node_allocatable,
    compute_reservations,
)

__all__ = [
    "Configuration",
    "ContainerSettings",
    "Duration",
    "EvictionThreshold",
    "NodeReservations",
    "NodeStatus",
    "OverReservation",
    "StartupResources",
    "StartupStage",
    "compute_node_allocatable",
    "compute_reservations",
    "container_settings",
    "host_settings",
    "ignored_fields",
    "node_status",
    "pods_limits",
    "read",
    "startup_errors",
]
