"""The directory a kubelet keeps its state in, ``/var/lib/kubelet`` or a copy: three files, any may be missing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from alignup.align.errors import FileError, Problem, StateError
from alignup.align.settings import FeatureGates
from alignup.state import atomic_files
from alignup.state.kubelet import cpu_file, device_file, memory_file
from alignup.state.kubelet.cpu_file import CpuState
from alignup.state.kubelet.device_file import DeviceState
from alignup.state.kubelet.memory_file import MemoryState

PLUGINS_DIR = "device-plugins"  #: where the device manager's file is

State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletFiles:
    """What a kubelet's state files say, all together; ``None`` is a file that is missing or cannot be used."""

    cpu: CpuState | None = None
    memory: MemoryState | None = None
    devices: DeviceState | None = None
    problems: tuple[Problem, ...] = ()  #: what is wrong with a file, by its path
    gaps: tuple[str, ...] = ()  #: what the files do not say, one sentence each


def read_dir(
    directory: Path, *, gates: FeatureGates, cpu_policy: str | None = None, memory_policy: str | None = None
) -> KubeletFiles:
    """Read the state files of *directory*; one that is missing is a gap, one that is broken a problem, not an error.

    Policies are compared with those configured where these are given. Only a directory that is not there, or with none
    of the files in it, is a ``FileError``.
    """
    if not directory.is_dir():
        raise FileError(f"{directory}: there is no such directory; give the one a kubelet keeps its state in")
    cpus = _File(directory / cpu_file.NAME, "which CPUs are in use")
    memory = _File(directory / memory_file.NAME, "which memory is in use")
    inside = directory / PLUGINS_DIR / device_file.NAME
    devices = _File(inside if inside.exists() else directory / device_file.NAME, "which devices are there and in use")
    found = KubeletFiles(
        cpu=cpus.parsed(lambda text, path: cpu_file.parse(text, configured_policy=cpu_policy, gates=gates, path=path)),
        memory=memory.parsed(
            lambda text, path: memory_file.parse(text, configured_policy=memory_policy, gates=gates, path=path)
        ),
        devices=devices.parsed(lambda text, path: device_file.parse(text, path=path)),
        problems=tuple(one.problem for one in (cpus, memory, devices) if one.problem),
        gaps=tuple(one.gap for one in (cpus, memory, devices) if one.gap),
    )
    if len(found.gaps) == 3:
        raise FileError(
            f"{directory}: none of the kubelet's state files is there "
            f"({cpu_file.NAME}, {memory_file.NAME}, {PLUGINS_DIR}/{device_file.NAME})"
        )
    return found


def write_dir(directory: Path, states: KubeletFiles, *, gates: FeatureGates) -> tuple[Path, ...]:
    """Write those of *states* that there are, each as a kubelet with these *gates* would; the files written.

    No kubelet may run on *directory*: it would not notice, and write over them.
    """
    texts: dict[Path, bytes] = {}
    if states.cpu is not None:
        texts[directory / cpu_file.NAME] = cpu_file.dump(states.cpu, gates=gates)
    if states.memory is not None:
        texts[directory / memory_file.NAME] = memory_file.dump(states.memory, gates=gates)
    if states.devices is not None:
        texts[directory / PLUGINS_DIR / device_file.NAME] = device_file.dump(states.devices)
    for path, text in texts.items():
        atomic_files.make_directory(path.parent)
        atomic_files.write(path, text)
    return tuple(texts)


@dataclass(slots=True)
class _File:
    """One of the files, and what came of reading it."""

    path: Path
    tells: str
    problem: Problem | None = None
    gap: str = ""

    def parsed(self, parse: Callable[[bytes, str], State]) -> State | None:
        try:
            text = atomic_files.read(self.path)
            if text is None:
                self.gap = f"there is no {self.path.name} in {self.path.parent}, so {self.tells} is not known"
                return None
            return parse(text, str(self.path))
        except (FileError, StateError) as error:
            self.problem = Problem(str(self.path), str(error))
            return None
