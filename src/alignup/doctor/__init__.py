"""Check whether a kubelet starts and behaves: its configuration on a machine, and its state files.

    checked = check_configuration(text, machine, name="kubelet.yaml")
    state = check_state(state_dir.read(directory), checked.manager_config)
    state_dir.write(directory, state.repairs, now=now)              # after a backup of each file

``managers`` finds what stops the kubelet, ``warnings`` what does not. ``salvage`` recovers damaged state files and
``repair`` makes valid states of them. Only ``state_dir`` and ``live_kubelet`` touch the system.
"""

from alignup.doctor.configuration import ConfigurationCheck, ManagerConfig, check_configuration
from alignup.doctor.findings import Area, DoctorReport, Finding, Severity
from alignup.doctor.state_check import FileRepair, StateCheck, StateFiles, check_state

__all__ = [
    "Area",
    "ConfigurationCheck",
    "DoctorReport",
    "FileRepair",
    "Finding",
    "ManagerConfig",
    "Severity",
    "StateCheck",
    "StateFiles",
    "check_configuration",
    "check_state",
]
