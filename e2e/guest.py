"""QEMU guests of any shape under software emulation, each booted for one Python script.

A guest boots from an image of ``e2e.disk`` with a Debian cloud kernel, which has NVMe, ext4 and NUMA built in. Its
second disk is the script itself, so that many guests share one image. It needs ``qemu-system-x86_64`` and a kernel: the
file named by ``ALIGNUP_GUEST_KERNEL``, or a cloud kernel in ``/boot``. ``ALIGNUP_GUEST_ACCELERATOR=kvm`` uses KVM.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e import containerd, disk
from e2e.programs import not_installed

PROGRAMS = ("qemu-system-x86_64", *disk.PROGRAMS)
NO_KERNEL = (
    "no cloud kernel in /boot (Debian: apt-get download the package that linux-image-cloud-amd64 depends on, "
    "dpkg-deb -x it, and set ALIGNUP_GUEST_KERNEL to its boot/vmlinuz-*)"
)
BOOT = 300  #: seconds until a guest that prints nothing counts as hung
SECONDS = 1800  #: timeout of a guest; on an idle machine it takes a tenth
TAIL = 4000  #: characters of the output shown in errors
LOCKUP = "Kernel panic - not syncing: softlockup"  #: a CPU switched no tasks for two thresholds: a fault of emulation
LOCKUP_THRESHOLD = 60  #: seconds; the kernel allows no more
SECTOR = 512  #: bytes; the size of a disk is a multiple
CPU = "Nehalem"  #: ``max`` has no hyperthreads


@dataclass(frozen=True)
class Node:
    memory: int  #: MiB
    cpus: str = ""  #: such as ``0-3``; empty: a memory-only node


@dataclass(frozen=True)
class Shape:
    """The hardware of a guest; CPUs are numbered by thread, then core, then socket."""

    sockets: int
    cores: int
    threads: int
    nodes: tuple[Node, ...]
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    nics: tuple[int, ...] = ()  #: one network card on each of these NUMA nodes
    hugepages: Mapping[int, int] = field(default_factory=dict)  #: node → pages of 2 MiB
    offline: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()  #: further devices, as options of QEMU


def missing() -> str | None:
    """Return why guests cannot run here; ``None`` if they can."""
    return not_installed(PROGRAMS) or (None if kernel() else NO_KERNEL)


def missing_node() -> str | None:
    """Return why guests with a container runtime cannot run here; ``None`` if they can."""
    return missing() or not_installed(containerd.PROGRAMS)


def kernel() -> Path | None:
    """Return the kernel of guests; ``None``: not found."""
    named = os.environ.get("ALIGNUP_GUEST_KERNEL")
    if named:
        return Path(named) if Path(named).is_file() else None
    return max(Path("/boot").glob("vmlinuz-*-cloud-*"), default=None)


def accelerator() -> str:
    """Return what runs the CPUs of guests: by default software, because not every ``/dev/kvm`` works."""
    return os.environ.get("ALIGNUP_GUEST_ACCELERATOR", "tcg")


def run(shape: Shape, script: str, *, image: Path, seconds: int = SECONDS, tries: int = 3) -> str:
    """Run *script* in a guest of *shape* that boots from *image*, which is not changed; return its output.

    On a busy machine, emulation sometimes hangs, so a guest that does not boot in time, or whose CPUs lock up, is
    started again. A script that takes more than *seconds* is not.
    """
    booted = kernel()
    if booted is None:
        raise RuntimeError(missing())
    with tempfile.TemporaryDirectory(prefix="alignup-guest-") as scratch:
        second = Path(scratch) / "script"
        second.write_bytes(_padded(setup_script(shape) + script))
        command = list(qemu_command(shape, (image, second), booted))
        for _ in range(tries):
            printed = _printed(command, Path(scratch) / "printed", seconds=seconds)
            if disk.BEGIN in printed and LOCKUP not in printed:
                break
    return _between(printed)


def _printed(command: list[str], out: Path, *, seconds: int) -> str:
    """Return the output of a guest until it powers off, fails to boot or times out."""
    begun, output = time.monotonic(), ""
    with out.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            while process.poll() is None and time.monotonic() - begun < (seconds if disk.BEGIN in output else BOOT):
                time.sleep(0.2)
                output = output if disk.BEGIN in output else out.read_text("utf-8", "replace")
        finally:
            process.kill()
            process.wait()
    return out.read_text("utf-8", "replace")


def _padded(script: str) -> bytes:
    """Return a script padded with empty lines to a whole number of sectors."""
    text = script.encode() + b"\n"
    return text + b"\n" * (-len(text) % SECTOR)


def _between(printed: str) -> str:
    _, begun, output = printed.partition(disk.BEGIN)
    output, ended, _ = output.partition(disk.END)
    if not begun or not ended:
        failure = "timed out or crashed" if begun else "did not boot"
        raise RuntimeError(f"the guest {failure}:\n{printed[-TAIL:]}")
    return output.strip().replace("\r", "")


def _setup_lines(shape: Shape) -> Iterator[str]:
    yield "from pathlib import Path\n"
    for node, count in shape.hugepages.items():
        path = f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"
        yield f"Path({path!r}).write_text('{count}')\n"
    for cpu in shape.offline:
        yield f"Path('/sys/devices/system/cpu/cpu{cpu}/online').write_text('0')\n"


def setup_script(shape: Shape) -> str:
    """Return Python code that a guest runs first: huge pages, and CPUs offline."""
    return "".join(_setup_lines(shape))


def qemu_command(shape: Shape, disks: tuple[Path, ...], booted: Path, *, network: str = "") -> Iterator[str]:
    """Return the command of a guest; *network* are the options of a user network, which needs kernel modules."""
    total = sum(node.memory for node in shape.nodes)
    count = shape.sockets * shape.cores * shape.threads
    yield from ("qemu-system-x86_64", "-machine", f"q35,accel={accelerator()}", "-cpu", CPU, "-m", f"{total}M")
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
    for device in shape.devices:
        yield from ("-device", device)
    for number, image in enumerate(disks):
        yield from ("-drive", f"file={image},if=none,id=disk{number},format=raw,snapshot=on")
        yield from ("-device", f"nvme,drive=disk{number},serial=disk{number},bus=pcie.0,addr={0x1A + number:#x}")
    if network:
        yield from ("-netdev", f"user,id=n0,{network}", "-device", "virtio-net-pci,netdev=n0,romfile=")
    yield from ("-kernel", os.fspath(booted), "-append")
    # Without nokaslr, the kernel takes its 32 MB from a random NUMA node. Without no_timer_check, it stops where the
    # emulated timer is late, as on a busy machine.
    yield (
        "root=/dev/nvme0n1 rw rootwait init=/init console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check "
        f"softlockup_panic=1 watchdog_thresh={LOCKUP_THRESHOLD}"
    )
    yield from ("-no-reboot", "-serial", "stdio", "-monitor", "none", "-nodefaults", "-display", "none")
