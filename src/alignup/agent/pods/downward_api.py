"""Files of a ``downwardAPI`` volume: all of them are as of the same moment, whenever they are read.

What containers see are links into ``..data``, and that is a link to the newest directory of files. It is changed in one
step, as the kubelet does, whose programs watch for it.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from alignup.agent.pods import pod_dirs

_DATA, _NEXT = "..data", "..data_tmp"
_SET_GROUP = 0o2000


@dataclass(frozen=True, slots=True)
class ProjectedFile:
    """What is in a file, and who may read it."""

    content: str
    mode: int


def write_files(directory: Path, files: Mapping[str, ProjectedFile], *, group: int | None = None) -> None:
    """Have *files*, by their paths in it, in *directory*, for *group* to read; where they are already, they stay."""
    directory.mkdir(mode=0o755, exist_ok=True)
    if _says(directory / _DATA, files):
        _link(directory, {Path(path).parts[0] for path in files})
        return
    new = Path(mkdtemp(prefix="..", dir=directory))
    new.chmod(0o755)
    for path, file in files.items():
        place = new.joinpath(*map(pod_dirs.path_component, Path(path).parts))
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        place.write_text(file.content, "utf-8")
        place.chmod(file.mode)
    if group is not None:
        _hand_over((directory, new, *new.rglob("*")), group)
    _publish(directory, new.name)
    _link(directory, {Path(path).parts[0] for path in files})


def _says(data: Path, files: Mapping[str, ProjectedFile]) -> bool:
    """Whether a directory has just these files."""
    found = {str(path.relative_to(data)): path.read_text("utf-8") for path in data.rglob("*") if path.is_file()}
    return data.is_symlink() and found == {str(Path(path)): file.content for path, file in files.items()}


def _publish(directory: Path, name: str) -> None:
    """Let the directory called *name* be what is read from now on; the one before is taken away."""
    data, following = directory / _DATA, directory / _NEXT
    before = data.readlink().name if data.is_symlink() else ""
    following.unlink(missing_ok=True)
    following.symlink_to(name)
    following.rename(data)
    if before:
        pod_dirs.remove_tree(directory / before)


def _link(directory: Path, tops: set[str]) -> None:
    for top in tops:
        link = directory / pod_dirs.path_component(top)
        if not link.is_symlink():
            link.symlink_to(f"{_DATA}/{top}")


def _hand_over(paths: Iterable[Path], group: int) -> None:
    for path in paths:
        os.chown(path, -1, group)
        path.chmod(path.stat().st_mode & 0o7777 | (0o550 | _SET_GROUP if path.is_dir() else 0o440))
