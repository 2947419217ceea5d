"""An operator's own KubeletConfiguration file, and what a kubelet would make of it on a machine.

    configuration = read(path.read_bytes(), name=path.name)   # load, defaults, validation
    host = Host(machine, settings(configuration, machine))    # reservations, policies, options
    for error in check(configuration, machine): ...           # all that keeps a kubelet from starting
    container_settings(configuration)                         # how containers are run

A kubelet meets errors one after the other, and the first one stops it; ``ConfigurationError.stage`` says which step
that is. ``shape`` knows the fields of the file, ``rules`` what validation wants, ``startup`` what is reserved,
``managers`` what the managers say to it, and ``containers`` how an agent runs them.
"""

from alignup.kube.configuration.containers import ContainerSettings, container_settings, pods_limits, unheeded
from alignup.kube.configuration.managers import check, node_status, settings
from alignup.kube.configuration.model import Configuration, Duration, Stage
from alignup.kube.configuration.reading import read
from alignup.kube.configuration.startup import Excess, NodeStatus, Passed, Started, Threshold, passed, started

__all__ = [
    "Configuration",
    "ContainerSettings",
    "Duration",
    "Excess",
    "NodeStatus",
    "Passed",
    "Stage",
    "Started",
    "Threshold",
    "check",
    "container_settings",
    "node_status",
    "passed",
    "pods_limits",
    "read",
    "settings",
    "started",
    "unheeded",
]
