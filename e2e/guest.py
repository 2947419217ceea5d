"""Machines of any shape: QEMU guests under software emulation, booted for one Python script and gone in half a minute.

A guest has this machine's Python and the project's ``src`` on an ext4 image made without root, and a kernel of Debian's
cloud flavour, in which NVMe, ext4 and NUMA are built in. It needs ``qemu-system-x86_64``, ``busybox`` (static),
``mke2fs`` and a kernel: the file named by ``ALIGNUP_GUEST_KERNEL``, or a cloud kernel in ``/boot``.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

BEGIN, END = "--- begin ---", "--- end ---"
PROGRAMS = ("qemu-system-x86_64", "busybox", "mke2fs", "ldd")
_SOURCE = Path(__file__).parent.parent / "src"

_INIT = f"""#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t tmpfs tmp /tmp
echo '{BEGIN}'
PYTHONPATH=/src PYTHONHOME={sys.base_prefix} LD_LIBRARY_PATH={sys.base_prefix}/lib \
  {sys.base_prefix}/bin/python{sysconfig.get_python_version()} /script.py 2>&1
echo '{END}'
/bin/busybox sync
/bin/busybox poweroff -f
"""


@dataclass(frozen=True)
class Node:
    """One NUMA node of a guest."""

    memory: int  #: MiB
    cpus: str = ""  #: as QEMU takes them, such as ``0-3``; empty for a node of memory only


@dataclass(frozen=True)
class Shape:
    """What a guest is started with; CPUs count threads, then cores, then sockets."""

    sockets: int
    cores: int
    threads: int
    nodes: tuple[Node, ...]
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    nics: tuple[int, ...] = ()  #: a network card near each of these nodes
    hugepages: Mapping[int, int] = field(default_factory=dict)  #: node → pages of 2 MiB
    offline: tuple[int, ...] = ()


def missing() -> str | None:
    """Why no guest can be started here; ``None`` when one can."""
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return None if kernel() else "no cloud kernel in /boot, and ALIGNUP_GUEST_KERNEL names none"


def kernel() -> Path | None:
    """The kernel guests boot."""
    named = os.environ.get("ALIGNUP_GUEST_KERNEL")
    if named:
        return Path(named) if Path(named).is_file() else None
    return max(Path("/boot").glob("vmlinuz-*-cloud-*"), default=None)


def run(shape: Shape, script: str, *, scratch: Path, seconds: int = 90, tries: int = 3) -> str:
    """What *script* prints in a guest of *shape*; *scratch* is a directory for the image.

    Software emulation on a busy machine hangs now and then while booting, so a guest that takes more than *seconds*
    is started again.
    """
    booted = kernel()
    if booted is None:
        raise RuntimeError(missing())
    command = list(_command(shape, _image(scratch, "".join(_setup_lines(shape)) + script), booted))
    for left in reversed(range(tries)):
        try:
            done = _ran(command, seconds=seconds)
        except subprocess.TimeoutExpired:
            if not left:
                raise
        else:
            return _between(done.stdout, done.stderr)
    raise AssertionError("at least one try")


def _between(printed: str, errors: str) -> str:
    _, begun, output = printed.partition(BEGIN)
    output, ended, _ = output.partition(END)
    if not begun or not ended:
        raise RuntimeError(f"the guest did not come to its end:\n{printed[-2000:]}\n{errors[-2000:]}")
    return output.strip().replace("\r", "")


def _setup_lines(shape: Shape) -> Iterator[str]:
    yield "from pathlib import Path\n"
    for node, count in shape.hugepages.items():
        path = f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"
        yield f"Path({path!r}).write_text('{count}')\n"
    for cpu in shape.offline:
        yield f"Path('/sys/devices/system/cpu/cpu{cpu}/online').write_text('0')\n"


def _image(scratch: Path, script: str) -> Path:
    root = scratch / "root"
    if not root.exists():
        _fill(root)
    (root / "script.py").write_text(script)
    image = scratch / "root.ext4"
    image.unlink(missing_ok=True)
    made = _ran(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", os.fspath(root), os.fspath(image), "400M"])
    if made.returncode:
        raise RuntimeError(f"no image could be made: {made.stderr}")
    return image


def _fill(root: Path) -> None:
    for name in ("proc", "sys", "dev", "tmp", "bin"):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", root / "bin" / "busybox")
    (root / "init").write_text(_INIT)
    (root / "init").chmod(0o755)
    shutil.copytree(_SOURCE, root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    prefix = Path(sys.base_prefix)
    library = Path(sysconfig.get_path("stdlib"))
    unneeded = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "tkinter", "config-*", "ensurepip")
    shutil.copytree(library, root / library.relative_to("/"), ignore=unneeded, symlinks=True)
    python = prefix / "bin" / f"python{sysconfig.get_python_version()}"
    (root / python.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(python, root / python.relative_to("/"))
    modules = list((library / "lib-dynload").glob("*.so"))
    for needed in _libraries(python, *modules):
        place = root / needed.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(needed, place)


def _libraries(*binaries: Path) -> set[Path]:
    listed = _ran(["ldd", *map(os.fspath, binaries)])
    words = (word for line in listed.stdout.splitlines() if line.startswith("\t") for word in line.split())
    return {Path(word) for word in words if word.startswith("/")}


def _ran(command: list[str], *, seconds: int = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - commands made here
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def _command(shape: Shape, image: Path, booted: Path) -> Iterator[str]:
    total = sum(node.memory for node in shape.nodes)
    count = shape.sockets * shape.cores * shape.threads
    # With -cpu max hyperthreads are lost.
    yield from ("qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "Nehalem", "-m", f"{total}M")
    yield from ("-smp", f"{count},sockets={shape.sockets},cores={shape.cores},threads={shape.threads}")
    for number, node in enumerate(shape.nodes):
        yield from ("-object", f"memory-backend-ram,id=m{number},size={node.memory}M")
        cpus = f",cpus={node.cpus}" if node.cpus else ""
        yield from ("-numa", f"node,nodeid={number},memdev=m{number}{cpus}")
    for (a, b), value in shape.distances.items():
        yield from ("-numa", f"dist,src={a},dst={b},val={value}")
    for number, node_id in enumerate(shape.nics):
        yield from ("-device", f"pxb-pcie,id=pxb{number},bus_nr={0x40 + 8 * number},bus=pcie.0,numa_node={node_id}")
        yield from ("-device", f"pcie-root-port,id=rp{number},bus=pxb{number},chassis={number + 1},slot={number + 1}")
        yield from ("-device", f"e1000e,bus=rp{number}")
    yield from ("-drive", f"file={image},if=none,id=root,format=raw,snapshot=on")
    yield from ("-device", "nvme,drive=root,serial=root,bus=pcie.0")
    yield from ("-kernel", os.fspath(booted), "-append")
    yield "root=/dev/nvme0n1 rw rootwait init=/init console=ttyS0 quiet panic=-1 mitigations=off"
    yield from ("-no-reboot", "-serial", "stdio", "-monitor", "none", "-nodefaults", "-display", "none")
