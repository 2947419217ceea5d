"""Machines of any shape: QEMU guests under software emulation, booted for one Python script and gone in half a minute.

A guest boots from a disk that ``e2e.disk`` made, with a kernel of Debian's cloud flavour, in which NVMe, ext4 and NUMA
are built in. Its second disk is the script itself, so that one disk does for many guests. It needs
``qemu-system-x86_64`` and a kernel: the file named by ``ALIGNUP_GUEST_KERNEL``, or a cloud kernel in ``/boot``.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e import containerd, disk

PROGRAMS = ("qemu-system-x86_64", *disk.PROGRAMS)
BOOT = 90  #: seconds until a guest that prints nothing counts as hung
TAIL = 4000  #: characters of what was printed that are shown when something is wrong
SECTOR = 512  #: bytes; a disk is a whole number of them


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


def missing_node() -> str | None:
    """Why no guest with a container runtime can be started here; ``None`` when one can."""
    absent = [program for program in containerd.PROGRAMS if not shutil.which(program)]
    return missing() or (f"not installed: {', '.join(absent)}" if absent else None)


def kernel() -> Path | None:
    """The kernel guests boot."""
    named = os.environ.get("ALIGNUP_GUEST_KERNEL")
    if named:
        return Path(named) if Path(named).is_file() else None
    return max(Path("/boot").glob("vmlinuz-*-cloud-*"), default=None)


def run(shape: Shape, script: str, *, image: Path, seconds: int = 90, tries: int = 3) -> str:
    """What *script* prints in a guest of *shape* that boots from *image*, a disk that stays as it is.

    Software emulation on a busy machine hangs now and then while booting, so a guest that has not booted in time is
    started again; one that takes more than *seconds* is not.
    """
    booted = kernel()
    if booted is None:
        raise RuntimeError(missing())
    with tempfile.TemporaryDirectory(prefix="alignup-guest-") as scratch:
        second = Path(scratch) / "script"
        second.write_bytes(_padded("".join(_setup_lines(shape)) + script))
        command = list(_command(shape, (image, second), booted))
        for _ in range(tries):
            printed = _printed(command, Path(scratch) / "printed", seconds=seconds)
            if disk.BEGIN in printed:
                break
    return _between(printed)


def _printed(command: list[str], out: Path, *, seconds: int) -> str:
    """All a guest prints until it is off, or has not booted in time, or takes too long."""
    begun, told = time.monotonic(), ""
    with out.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - a command made here
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
        try:
            while process.poll() is None and time.monotonic() - begun < (seconds if disk.BEGIN in told else BOOT):
                time.sleep(0.2)
                told = told if disk.BEGIN in told else out.read_text("utf-8", "replace")
        finally:
            process.kill()
            process.wait()
    return out.read_text("utf-8", "replace")


def calling(module: str, function: str, *told: object) -> str:
    """A script that calls a *function* with what it is *told* and prints what it gives, both as JSON."""
    values = [f"json.loads({json.dumps(one)!r})" for one in told]
    # On lines of their own: a traceback shows the line where it went wrong.
    given = "".join(f"told.append({value})\n" for value in values)
    call = f"print('\\n' + json.dumps({function}(*told)))\n"
    return f"import json\nfrom {module} import {function}\ntold = []\n{given}{call}"


def answer(printed: str) -> dict[str, Any]:
    """What a function gave that a script called."""
    try:
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise RuntimeError(f"it went wrong in the guest:\n{printed[-TAIL:]}") from error
    return found


def _padded(script: str) -> bytes:
    """A script as long as a disk can be; Python does not mind empty lines."""
    text = script.encode() + b"\n"
    return text + b"\n" * (-len(text) % SECTOR)


def _between(printed: str) -> str:
    _, begun, output = printed.partition(disk.BEGIN)
    output, ended, _ = output.partition(disk.END)
    if not begun or not ended:
        what = "took too long, or came to a sudden end" if begun else "did not boot"
        raise RuntimeError(f"the guest {what}:\n{printed[-TAIL:]}")
    return output.strip().replace("\r", "")


def _setup_lines(shape: Shape) -> Iterator[str]:
    yield "from pathlib import Path\n"
    for node, count in shape.hugepages.items():
        path = f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"
        yield f"Path({path!r}).write_text('{count}')\n"
    for cpu in shape.offline:
        yield f"Path('/sys/devices/system/cpu/cpu{cpu}/online').write_text('0')\n"


def _command(shape: Shape, disks: tuple[Path, ...], booted: Path) -> Iterator[str]:
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
    for number, image in enumerate(disks):
        yield from ("-drive", f"file={image},if=none,id=disk{number},format=raw,snapshot=on")
        yield from ("-device", f"nvme,drive=disk{number},serial=disk{number},bus=pcie.0,addr={0x1A + number:#x}")
    yield from ("-kernel", os.fspath(booted), "-append")
    # Without nokaslr the kernel takes its 32 MB from whichever node it fancies.
    yield "root=/dev/nvme0n1 rw rootwait init=/init console=ttyS0 quiet panic=-1 mitigations=off nokaslr"
    yield from ("-no-reboot", "-serial", "stdio", "-monitor", "none", "-nodefaults", "-display", "none")
