"""Will this kubelet start, and behave? What is wrong with its configuration and its state files, and what to do.

    examined = examine(text, machine, name="kubelet.yaml")    # the configuration, on this machine
    looked = look_into(folder.read(directory), examined.basis)    # the state files, as they would be judged
    folder.write(directory, looked.repairs, now=now)              # after a backup of each

``reading`` gets as much as can be had from a file the kubelet refuses, ``managers`` says what stops it and ``cautions``
what does not; ``salvage`` does the same for state files, ``mending`` makes sound states of what it found. All of it is
pure but ``folder``, which touches the directory, and ``users``, which finds out whether a kubelet is at work in it.
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
