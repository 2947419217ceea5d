"""Disk images for guests: ext4, built without root, with this machine's Python, the project and its dependencies.

Every file has the same path as here, so that Python finds its modules. The image includes compiled modules, because
compiling is slow under emulation. The second disk of a guest is the script to run.
"""

import compileall
import os
import py_compile
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

BEGIN, END = "--- begin ---", "--- end ---"
PROGRAMS = ("busybox", "mke2fs", "ldd")
SCRIPT = "/dev/nvme1n1"
_HERE = Path(__file__).parent
_SOURCE = _HERE.parent / "src"

PYTHON = f"{sys.base_prefix}/bin/python{sysconfig.get_python_version()}"
#: The beginning of every ``/init``.
PREPARE = f"""#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t tmpfs tmp /tmp
export PATH={shlex.quote(os.environ["PATH"])}:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
export PYTHONPATH=/src PYTHONHOME={sys.base_prefix} LD_LIBRARY_PATH={sys.base_prefix}/lib
"""
INIT = f"""{PREPARE}
echo '{BEGIN}'
{PYTHON} {SCRIPT} 2>&1
echo '{END}'
/bin/busybox sync
/bin/busybox poweroff -f
"""

_UNNEEDED = ("site-packages", "test", "tests", "idlelib", "tkinter", "config-*", "ensurepip", "lib2to3", "turtledemo")


def make(scratch: Path) -> Path:
    """Return an image in the empty directory *scratch*, for scripts that need only the standard library."""
    return pack(fill(scratch / "root"), scratch / "root.ext4", size=400)


def fill(
    root: Path,
    *,
    extras: Iterable[str] | None = None,
    programs: Iterable[str] = (),
    init: str = INIT,
    project: bool = True,
) -> Path:
    """Populate *root* with what a guest needs; return *root*.

    With *extras*, even none, it includes the project's dependencies and those of the extras; *programs* of this machine
    are copied with their libraries. Without *project*, a disk of the guest has the project.
    """
    _python(root, init)
    if project:
        _project(root)
    if extras is not None:
        _dependencies(root, extras)
    for program in programs:
        _program(root, program)
    return root


def pack(root: Path, image: Path, *, size: int) -> Path:
    """Build an image of *size* MiB from a directory."""
    image.unlink(missing_ok=True)
    options = ("-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0")
    completed = _ran("mke2fs", *options, "-d", os.fspath(root), os.fspath(image), f"{size}M")
    if completed.returncode:
        raise RuntimeError(f"cannot build the image: {completed.stderr}")
    return image


def _python(root: Path, init: str) -> None:
    for name in ("proc", "sys", "dev", "tmp", "bin", "root", "run", "etc"):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", root / "bin" / "busybox")
    (root / "init").write_text(init)
    (root / "init").chmod(0o755)
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, _in(root, library), ignore=shutil.ignore_patterns(*_UNNEEDED), symlinks=True)
    python = Path(sys.base_prefix) / "bin" / f"python{sysconfig.get_python_version()}"
    _copy(root, python)
    _with_libraries(root, python, *(library / "lib-dynload").glob("*.so"))


def _project(root: Path) -> None:
    source = root / "src"
    shutil.copytree(_SOURCE, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(_HERE, source / "e2e", ignore=shutil.ignore_patterns("__pycache__", "test_*"))
    compileall.compile_dir(
        source, quiet=1, stripdir=os.fspath(root), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


def _dependencies(root: Path, extras: Iterable[str]) -> None:
    source = root / "src"
    modules = []
    for file in _files("alignup", frozenset(extras)):
        place = source / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file.locate(), place)
        modules += [place] if place.suffix == ".so" else []
    _with_libraries(root, *modules)


def _files(name: str, extras: frozenset[str]) -> Iterator[metadata.PackagePath]:
    """Return the files of all direct and indirect dependencies of the package *name*."""
    seen, left = {name}, [(name, extras)]
    while left:
        package, wanted = left.pop()
        distribution = metadata.distribution(package)
        for need in _needs(distribution, wanted) - seen:
            seen.add(need)
            left.append((need, frozenset()))
        for file in distribution.files or () if package != name else ():
            if file.parts[0] != ".." and Path(file.locate()).exists():
                yield file


def _needs(package: metadata.Distribution, extras: frozenset[str]) -> set[str]:
    """Return the names of installed packages that *package* requires."""
    names = set()
    for line in package.requires or ():
        wanted, _, condition = line.partition(";")
        extra = re.search(r"extra == ['\"]([^'\"]+)", condition)
        name = re.split(r"[^A-Za-z0-9._-]", wanted, maxsplit=1)[0]
        if (not extra or extra[1] in extras) and next(iter(metadata.distributions(name=name)), None):
            names.add(name)
    return names


def _program(root: Path, name: str) -> None:
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"not installed: {name}")
    _copy(root, Path(path))
    _with_libraries(root, Path(path))


def _with_libraries(root: Path, *binaries: Path) -> None:
    listed = _ran("ldd", *map(os.fspath, binaries))
    words = (word for line in listed.stdout.splitlines() if line.startswith("\t") for word in line.split())
    for needed in {Path(word) for word in words if word.startswith("/")}:
        if root not in needed.parents:
            _copy(root, needed)


def _copy(root: Path, path: Path) -> None:
    place = _in(root, path)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, place)


def _in(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _ran(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
