"""A private containerd in a directory, with locally built images and no downloads.

It needs root, ``containerd``, ``runc``, ``ctr`` and a static ``busybox``. Containers are on the host network, because
CNI is not configured. Guests reuse the configuration and the image archive.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from e2e.programs import not_installed

BUSYBOX = "localhost/busybox:1"  #: a shell and common commands; runs ``sleep`` by default
PAUSE = "localhost/pause:1"  #: the sandbox image
IMAGES = (BUSYBOX, PAUSE)

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox")
APPLETS = (
    *("cat", "cp", "dd", "echo", "env", "false", "grep", "gzip", "head", "hostname", "id", "kill", "ls", "mkdir"),
    *("mktemp", "nproc", "ps", "rm", "sh", "sleep", "tail", "tar", "taskset", "touch", "true", "wc"),
)

_NAMESPACE = "k8s.io"  #: containerd's namespace of CRI clients
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_TIMEOUT = 600.0  #: seconds; on an idle machine nothing takes a tenth of it
_READY = "Start streaming server"  #: the last log line before it serves CRI


def missing() -> str | None:
    """Return why containerd cannot run here; ``None`` if it can."""
    if absent := not_installed(PROGRAMS):
        return absent
    if os.geteuid():
        return "containerd needs root: run as root"
    groups = Path("/sys/fs/cgroup")
    if not any((groups / name).exists() for name in ("cgroup.controllers", "cpuset")):
        return f"no cgroups with cpusets at {groups}: mount cgroup2, or the cpuset controller of version 1, there"
    return None


def version() -> str:
    """Return the version of containerd, such as ``1.6.20``."""
    output = subprocess.run(
        ["containerd", "--version"], capture_output=True, text=True, timeout=_TIMEOUT, check=True
    ).stdout
    return output.split()[2].lstrip("v")


def configuration(place: Path) -> str:
    """Return the configuration of a containerd that stores everything in *place*."""
    first = version().startswith("1.")
    plugins = _plugins_1(place) if first else _plugins_2(place)
    if missing_nri() is None:
        plugins += _nri(place)
    return f"""version = {2 if first else 3}
root = "{place}/root"
state = "{place}/state"
[grpc]
address = "{place}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{place}/opt"
{plugins}"""


def missing_nri() -> str | None:
    """Return why the installed containerd has no NRI; ``None`` if it has: since 1.7."""
    if tuple(map(int, version().split(".")[:2])) >= (1, 7):
        return None
    return f"containerd {version()} has no NRI: put 1.7 or later first in PATH"


def _nri(place: Path) -> str:
    return f"""[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{place}/nri.sock"
plugin_path = "{place}/nri/plugins"
plugin_config_path = "{place}/nri/conf.d"
"""


def _plugins_1(place: Path) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""[{cri}]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
disable_apparmor = true
[{cri}.containerd]
snapshotter = "overlayfs"
[{cri}.cni]
bin_dir = "{place}/cni/bin"
conf_dir = "{place}/cni/net.d"
"""


def _plugins_2(place: Path) -> str:
    images, runtime = 'plugins."io.containerd.cri.v1.images"', 'plugins."io.containerd.cri.v1.runtime"'
    return f"""[{images}]
snapshotter = "overlayfs"
[{images}.pinned_images]
sandbox = "{PAUSE}"
[{runtime}]
restrict_oom_score_adj = true
disable_apparmor = true
[{runtime}.cni]
bin_dir = "{place}/cni/bin"
conf_dir = "{place}/cni/net.d"
"""


def archive(path: Path, images: Iterable[str] = IMAGES) -> Path:
    """Write a docker-archive with busybox under each of these names; return *path*."""
    config = {"Entrypoint": ["/bin/sleep"], "Cmd": ["2147483647"], "Env": ["PATH=/bin"]}
    return write_archive(path, _layer(), {name: {**config, "Labels": {"name": name}} for name in images})


def write_archive(path: Path, layer: bytes, configs: Mapping[str, object]) -> Path:
    """Write a docker-archive of images with one layer; *configs* has by name how they run. Return *path*.

    Images with the same configuration have the same id, and thus one name.
    """
    machine = platform.machine()
    system = {"architecture": _ARCHITECTURES.get(machine, machine), "os": "linux"}
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    entries = []
    files = {"layer.tar": layer}
    for name, config in configs.items():
        content = json.dumps({**system, "config": config, "rootfs": rootfs}).encode()
        file = f"{hashlib.sha256(content).hexdigest()}.json"
        files[file] = content
        entries.append({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]})
    files["manifest.json"] = json.dumps(entries).encode()
    with tarfile.open(path, "w") as packed:
        for name, content in files.items():
            packed.addfile(_member(name, len(content)), io.BytesIO(content))
    return path


@dataclass
class Containerd:
    """A containerd whose files are all in *place*."""

    place: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def socket(self) -> Path:
        return self.place / "containerd.sock"

    @property
    def nri_socket(self) -> Path:
        return self.place / "nri.sock"

    def start(self) -> None:
        """Start it; return when it serves."""
        with (self.place / "containerd.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["containerd", "--config", os.fspath(self.place / "config.toml")], stdout=log, stderr=log
            )
        until = time.monotonic() + _TIMEOUT
        while _READY not in self.log():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"containerd did not start:\n{self.log()[-2000:]}")
            time.sleep(0.05)

    def restart(self) -> None:
        """Kill it, and start it again; containers run on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        (self.place / "containerd.log").unlink()
        self.start()

    def ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run containerd's command-line client."""
        command = ["ctr", "--address", os.fspath(self.socket), "--namespace", _NAMESPACE, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done

    def containers(self) -> list[str]:
        """Return the ids of all containers, those of sandboxes included."""
        return self.ctr("containers", "list", "--quiet").stdout.split()

    def load(self, packed: Path, images: Iterable[str] = IMAGES) -> None:
        """Import an archive of *images*."""
        # Without --local, newer versions import in the daemon, which supports its default snapshotter only.
        local = ["--local"] if "--local" in self.ctr("images", "import", "--help").stdout else []
        self.ctr("images", "import", *local, "--snapshotter", "overlayfs", os.fspath(packed))
        for name in images:
            self.ctr("images", "label", name, "io.cri-containerd.image=managed")

    def log(self) -> str:
        return (self.place / "containerd.log").read_text("utf-8", "replace")

    def clear(self) -> None:
        """Kill every container and containerd itself, and leave nothing of them on the machine."""
        groups: set[Path] = set()
        for shim in _shims(self.socket):
            for pid in (*_descendants(shim), shim):
                groups.update(_groups(pid))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        _unmount(self.place)
        until = time.monotonic() + _TIMEOUT
        while groups := {group for group in groups if not _removed(group)}:  # killed processes take a moment to exit
            if time.monotonic() > until:
                raise RuntimeError(f"processes are left in {groups}")
            time.sleep(0.05)
        _unmount(self.place)


@contextmanager
def containerd(place: Path) -> Iterator[Containerd]:
    """Run a containerd with its images; *place* must have a short path, because of the socket."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.toml").write_text(configuration(place))
    runtime = Containerd(place)
    try:
        runtime.start()
        runtime.load(archive(place / "images.tar"))
        yield runtime
    finally:
        runtime.clear()


def _layer() -> bytes:
    """Return an image layer with busybox."""
    binary = Path(shutil.which("busybox") or "").read_bytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as packed:
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            directory = _member(name, 0)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            packed.addfile(directory)
        packed.addfile(_member("bin/busybox", len(binary)), io.BytesIO(binary))
        for applet in APPLETS:
            link = _member(f"bin/{applet}", 0)
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            packed.addfile(link)
        users = b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
        packed.addfile(_member("etc/passwd", len(users)), io.BytesIO(users))
    return buffer.getvalue()


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o755
    return member


def _shims(socket: Path) -> Sequence[int]:
    """Return the shim processes of this containerd."""
    shims = []
    for pid in _pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if "containerd-shim" in words[0] and os.fspath(socket) in words:
                shims.append(pid)
    return shims


def _descendants(pid: int) -> Sequence[int]:
    parents: dict[int, int] = {}
    for other in _pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[other] = int(Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[1])
    family: list[int] = [pid]
    for ancestor in family:
        family += [child for child, parent in parents.items() if parent == ancestor]
    return family[1:]


def _pids() -> Sequence[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _groups(pid: int) -> Iterator[Path]:
    """Return the cgroups of the container of a process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = path.lstrip("/")
            names = (controllers.removeprefix("name="),) if controllers else ("", "unified")
            # A container's cgroup is named after its id, 64 digits.
            if len(Path(inside).name) == 64:
                yield from (Path("/sys/fs/cgroup") / name / inside for name in names)


def _removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def _unmount(place: Path) -> None:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    for point in sorted((line.split(" ")[4] for line in lines), reverse=True):
        if Path(point).is_relative_to(place):
            subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)
