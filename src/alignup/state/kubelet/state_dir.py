"""A kubelet's state directory, ``/var/lib/kubelet`` or a copy, with up to three state files."""

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
    """The contents of a kubelet's state files; ``None`` if a file is missing or unusable."""

    cpu: CpuState | None = None
    memory: MemoryState | None = None
    devices: DeviceState | None = None
    problems: tuple[Problem, ...] = ()  #: with the path of the file as field
    gaps: tuple[str, ...] = ()  #: what is unknown, one sentence each


def read_dir(
    directory: Path, *, gates: FeatureGates, cpu_policy: str | None = None, memory_policy: str | None = None
) -> KubeletFiles:
    """Read the state files of *directory*; a missing file is a gap, and an unusable one a problem, not an error.

    Policies are checked if they are given. ``FileError`` if the directory does not exist or has none of the files.
    """
    if not directory.is_dir():
        raise FileError(f"{directory}: no such directory; name the state directory of a kubelet")
    cpus = _File(directory / cpu_file.NAME, "the CPUs in use are")
    memory = _File(directory / memory_file.NAME, "the memory in use is")
    inside = directory / PLUGINS_DIR / device_file.NAME
    devices = _File(inside if inside.exists() else directory / device_file.NAME, "the devices are")
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
            f"{directory}: none of the kubelet's state files exists "
            f"({cpu_file.NAME}, {memory_file.NAME}, {PLUGINS_DIR}/{device_file.NAME})"
        )
    return found


def write_dir(directory: Path, states: KubeletFiles, *, gates: FeatureGates) -> tuple[Path, ...]:
    """Write the *states* that are not ``None`` as a kubelet with these *gates* does; return the paths.

    No kubelet may use *directory* meanwhile: it would overwrite the files.
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
    path: Path
    content: str  #: with a verb, for the sentence about a missing file
    problem: Problem | None = None
    gap: str = ""

    def parsed(self, parse: Callable[[bytes, str], State]) -> State | None:
        try:
            text = atomic_files.read(self.path)
            if text is None:
                self.gap = f"{self.path.parent} has no {self.path.name}, so {self.content} unknown"
                return None
            return parse(text, str(self.path))
        except (FileError, StateError) as error:
            self.problem = Problem(str(self.path), str(error))
            return None
