"""A containerd of this machine with ``alignup nri``, and a test that plays the kubelet.

The plugin sees a machine whose CPUs are on two NUMA nodes, CPU 0 and CPU 1. Their memory is unknown: the kernel has one
node only.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from e2e import containerd
from e2e.api import until
from e2e.containerd import Containerd
from e2e.cri import CriClient, cri_client
from tests.short_paths import short_directory

CPUS = len(os.sched_getaffinity(0))
BOTH = "0-1"  #: all CPUs
_SYNCHRONIZED = "synchronized with the runtime"


def missing() -> str | None:
    """Return why this machine cannot be such a node; ``None`` if it can."""
    few = None if CPUS >= 2 else "needs two CPUs"
    return containerd.missing() or containerd.missing_nri() or few


@contextmanager
def started_runtime() -> Iterator[tuple[Path, Containerd, CriClient]]:
    """Run a containerd in a directory with a short path."""
    with short_directory() as place, containerd.containerd(place / "c") as runtime, cri_client(runtime.socket) as cri:
        yield place, runtime, cri


@dataclass
class NriNode:
    """A runtime, and a plugin with these *words* as options."""

    place: Path
    runtime: Containerd
    cri: CriClient
    words: tuple[str, ...] = ()
    _plugin: subprocess.Popen[bytes] | None = None

    @property
    def kubelet(self) -> Path:
        return self.place / "kubelet"

    def write_machine(self, **meminfo: str) -> None:
        """Write a machine of two NUMA nodes with one CPU each, and the kubelet's directory."""
        system = self.place / "host" / "sys" / "devices" / "system"
        files = {"cpu/online": BOTH}
        for cpu in range(2):
            files[f"cpu/cpu{cpu}/topology/physical_package_id"] = "0"
            files[f"cpu/cpu{cpu}/topology/core_id"] = str(cpu)
            files[f"node/node{cpu}/cpulist"] = str(cpu)
        for name, text in {**files, **meminfo}.items():
            (system / name).parent.mkdir(parents=True, exist_ok=True)
            (system / name).write_text(text)
        self.kubelet.mkdir()

    def __enter__(self) -> Self:
        self.start_plugin()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill_plugin()
        print(self.log())

    def start_plugin(self) -> None:
        command = [
            *(sys.executable, "-m", "alignup", "nri", "--period", "0.1", *self.words),
            *("--socket", str(self.runtime.nri_socket), "--kubelet-dir", str(self.kubelet)),
            *("--host-root", str(self.place / "host")),
        ]
        count = self.log().count(_SYNCHRONIZED)
        with (self.place / "plugin.log").open("ab") as log:
            self._plugin = subprocess.Popen(command, stdout=log, stderr=log)
        self.wait_synchronized(count)

    def synchronizations(self) -> int:
        return self.log().count(_SYNCHRONIZED)

    def wait_synchronized(self, before: int) -> None:
        until("the plugin is synchronized", lambda: self.synchronizations() > before, detail=self.log)

    def stayed_connected(self) -> bool:
        """Return whether the runtime has not disconnected the plugin since it was last synchronized."""
        return "not connected" not in self.log().rpartition(_SYNCHRONIZED)[2]

    def kill_plugin(self) -> None:
        if self._plugin is not None:
            self._plugin.kill()
            self._plugin.wait()

    def log(self) -> str:
        path = self.place / "plugin.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def cpus(self, *containers: str) -> list[str]:
        """Return the CPUs that the processes of each container may use."""
        return [self.cri.allowed(container)[0] for container in containers]
