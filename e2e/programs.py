"""The programs that tests need, and the Debian packages that have them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]

PACKAGES = {
    "apt-get": "apt",
    "busybox": "busybox-static",
    "chromium": "chromium",
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "ctr": "containerd",
    "curl": "curl",
    "dpkg-deb": "dpkg",
    "etcd": "etcd-server",
    "fish": "fish",
    "hwloc-gather-topology": "hwloc",
    "ip": "iproute2",
    "ldd": "libc-bin",
    "mke2fs": "e2fsprogs",
    "openssl": "openssl",
    "pipx": "pipx",
    "qemu-system-x86_64": "qemu-system-x86",
    "runc": "runc",
    "setpriv": "util-linux",
    "systemd-analyze": "systemd",
    "zsh": "zsh",
}


def not_installed(programs: Iterable[str]) -> str | None:
    """Return which of these are missing, and how to install them on Debian; ``None`` if none is."""
    absent = [program for program in programs if not shutil.which(program)]
    if not absent:
        return None
    packages = sorted({PACKAGES[program] for program in absent})
    return f"not installed: {', '.join(absent)} (Debian: apt-get install {' '.join(packages)})"


def run_alignup(*words: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run this program."""
    command = [sys.executable, "-m", "alignup", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def user_environment(kubeconfig: Path, *directories: Path) -> dict[str, str]:
    """Return the environment of a user with this program, programs in other *directories*, and a *kubeconfig*."""
    path = os.pathsep.join([*map(str, (Path(sys.executable).parent, *directories)), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)}
