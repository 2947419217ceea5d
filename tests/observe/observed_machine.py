"""An observer of this very machine, with the files of a kubelet that has no managers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from alignup.machines import machine_source
from alignup.observe.kubelet_reader import KubeletPaths
from alignup.observe.observer import ObserverTiming
from alignup.observe.service import ObserveOptions
from alignup.testing.simulated_kubelet import SimulatedKubelet


def observe_once(directory: Path, **options: Any) -> ObserveOptions:
    """Write the files to *directory*, and return options that publish the host once."""
    machine = replace(machine_source.discover(), devices=())
    kubelet = SimulatedKubelet(
        machine=machine,
        devices=(),
        topologyManagerPolicy="none",
        cpuManagerPolicy="none",
        memoryManagerPolicy="None",
        reservedMemory=None,
    )
    directory.mkdir()
    (directory / "config.yaml").write_bytes(kubelet.text)
    kubelet.write(directory)
    given = {"configz": False, "once": True, "timing": ObserverTiming(settle=0.0), **options}
    return ObserveOptions(host="host-a", paths=KubeletPaths(directory=directory), **given)
