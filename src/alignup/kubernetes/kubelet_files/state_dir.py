"""A kubelet's state directory, ``/var/lib/kubelet`` or a copy, with up to three state files."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from alignup import atomic_files
from alignup.align.errors import FileError, Problem, StateError
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files import allocated_pods_file, cpu_file, device_file, memory_file
from alignup.kubernetes.kubelet_files.allocated_pods_file import AllocatedPods
from alignup.kubernetes.kubelet_files.cpu_file import CpuState
from alignup.kubernetes.kubelet_files.device_file import DeviceState
from alignup.kubernetes.kubelet_files.memory_file import MemoryState

PLUGINS_DIR = "device-plugins"
DEVICE_STATE = f"{PLUGINS_DIR}/{device_file.NAME}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletFiles:
    """The contents of a kubelet's state files; ``None`` if a file is missing or unusable."""

    cpu: CpuState | None = None
    memory: MemoryState | None = None
    devices: DeviceState | None = None
    problems: tuple[Problem, ...] = ()  #: with the path of the file as field
    gaps: tuple[str, ...] = ()  #: what is unknown, one sentence each


def state_files(directory: Path) -> dict[str, Path]:
    """Return the path of each state file, by its path in a kubelet's directory.

    A copy may have all of them in one directory.
    """
    nested, flat = directory / DEVICE_STATE, directory / device_file.NAME
    return {
        cpu_file.NAME: directory / cpu_file.NAME,
        memory_file.NAME: directory / memory_file.NAME,
        DEVICE_STATE: flat if flat.exists() and not nested.exists() else nested,
    }


def read_dir(
    directory: Path, *, gates: FeatureGates, cpu_policy: str | None = None, memory_policy: str | None = None
) -> KubeletFiles:
    """Read the state files of *directory*; a missing file is a gap, and an unusable one a problem, not an error.

    Policies are checked if they are given. ``FileError`` if the directory does not exist or has none of the files.
    """
    if not directory.is_dir():
        raise FileError(f"{directory}: no such directory; name the state directory of a kubelet")
    found: dict[str, Any] = {}
    problems, gaps = [], []
    kinds: tuple[tuple[str, Any, str], ...] = (
        ("cpu", partial(cpu_file.parse, configured_policy=cpu_policy, gates=gates), "the CPUs in use are"),
        ("memory", partial(memory_file.parse, configured_policy=memory_policy, gates=gates), "the memory in use is"),
        ("devices", device_file.parse, "the devices are"),
    )
    for (name, parse, content), path in zip(kinds, state_files(directory).values(), strict=True):
        try:
            text = atomic_files.read(path)
            if text is None:
                gaps.append(f"{directory} has no {path.name}, so {content} unknown")
            else:
                found[name] = parse(text, path=str(path))
        except (FileError, StateError) as error:
            problems.append(Problem(str(path), str(error)))
    if len(gaps) == len(kinds):
        names = f"{cpu_file.NAME}, {memory_file.NAME}, {DEVICE_STATE}"
        raise FileError(f"{directory}: none of the kubelet's state files exists ({names})")
    return KubeletFiles(**found, problems=tuple(problems), gaps=tuple(gaps))


def read_allocated_pods(directory: Path) -> AllocatedPods | None:
    """Read ``allocated_pods_state``; ``None`` if it does not exist, as with older kubelets."""
    path = directory / allocated_pods_file.NAME
    text = atomic_files.read(path)
    return None if text is None else allocated_pods_file.parse(text, path=str(path))


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
        texts[directory / DEVICE_STATE] = device_file.dump(states.devices)
    for path, text in texts.items():
        atomic_files.make_directory(path.parent)
        atomic_files.write(path, text)
    return tuple(texts)
