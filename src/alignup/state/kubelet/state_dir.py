"""A kubelet's state directory, ``/var/lib/kubelet`` or a copy, with up to three state files."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from alignup.align.errors import FileError, Problem, StateError
from alignup.align.settings import FeatureGates
from alignup.state import atomic_files
from alignup.state.kubelet import cpu_file, device_file, memory_file
from alignup.state.kubelet.cpu_file import CpuState
from alignup.state.kubelet.device_file import DeviceState
from alignup.state.kubelet.memory_file import MemoryState

PLUGINS_DIR = "device-plugins"  #: where the device manager's file is


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
    inside = directory / PLUGINS_DIR / device_file.NAME
    devices = inside if inside.exists() else directory / device_file.NAME
    parse_cpus = partial(cpu_file.parse, configured_policy=cpu_policy, gates=gates)
    parse_memory = partial(memory_file.parse, configured_policy=memory_policy, gates=gates)
    found: dict[str, Any] = {}
    problems, gaps = [], []
    files: tuple[tuple[str, Path, Any, str], ...] = (
        ("cpu", directory / cpu_file.NAME, parse_cpus, "the CPUs in use are"),
        ("memory", directory / memory_file.NAME, parse_memory, "the memory in use is"),
        ("devices", devices, device_file.parse, "the devices are"),
    )
    for name, path, parse, content in files:
        try:
            text = atomic_files.read(path)
            if text is None:
                gaps.append(f"{path.parent} has no {path.name}, so {content} unknown")
            else:
                found[name] = parse(text, path=str(path))
        except (FileError, StateError) as error:
            problems.append(Problem(str(path), str(error)))
    if len(gaps) == len(files):
        raise FileError(
            f"{directory}: none of the kubelet's state files exists "
            f"({cpu_file.NAME}, {memory_file.NAME}, {PLUGINS_DIR}/{device_file.NAME})"
        )
    return KubeletFiles(**found, problems=tuple(problems), gaps=tuple(gaps))


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
