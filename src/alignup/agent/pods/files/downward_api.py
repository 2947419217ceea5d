"""Files of a ``downwardAPI`` volume, updated atomically as the kubelet does.

Containers see symlinks into ``..data``, itself a symlink to the newest directory of files. One rename replaces it, and
programs that watch ``..data`` work as they do under a kubelet.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from alignup.agent.pods.files import pod_dirs

_DATA, _NEW_DATA = "..data", "..data_tmp"
_SETGID = 0o2000


@dataclass(frozen=True, slots=True)
class ProjectedFile:
    content: str
    mode: int


def write_files(directory: Path, files: Mapping[str, ProjectedFile], *, group: int | None = None) -> None:
    """Write *files*, by relative path, into *directory*, readable by *group*; unchanged files are left alone."""
    directory.mkdir(mode=0o755, exist_ok=True)
    data = directory / _DATA
    current = {str(path.relative_to(data)): path.read_text("utf-8") for path in data.rglob("*") if path.is_file()}
    if not data.is_symlink() or current != {str(Path(path)): file.content for path, file in files.items()}:
        _replace(directory, files, group=group)
    for top in {Path(path).parts[0] for path in files}:
        link = directory / pod_dirs.path_component(top)
        if not link.is_symlink():
            link.symlink_to(f"{_DATA}/{top}")


def _replace(directory: Path, files: Mapping[str, ProjectedFile], *, group: int | None) -> None:
    """Write *files* into a new directory, point ``..data`` to it, and remove the previous one."""
    new = Path(mkdtemp(prefix="..", dir=directory))
    new.chmod(0o755)
    for path, file in files.items():
        target = new.joinpath(*map(pod_dirs.path_component, Path(path).parts))
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        target.write_text(file.content, "utf-8")
        target.chmod(file.mode)
    if group is not None:
        for written in (directory, new, *new.rglob("*")):
            os.chown(written, -1, group)
            written.chmod(written.stat().st_mode & 0o7777 | (0o550 | _SETGID if written.is_dir() else 0o440))
    data, new_data = directory / _DATA, directory / _NEW_DATA
    previous = data.readlink().name if data.is_symlink() else ""
    new_data.unlink(missing_ok=True)
    new_data.symlink_to(new.name)
    new_data.rename(data)
    if previous:
        pod_dirs.remove_tree(directory / previous)
