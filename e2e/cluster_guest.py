"""Guests with several NUMA nodes and a real kubelet each, as nodes of a real cluster.

All guests boot from one image: Python, the project's dependencies, containerd, the kubelet and container images. It is
kept in the directory named by ``ALIGNUP_GUEST_CACHE`` and built again when something in it has changed. The second disk
of a guest is a tar archive with the project and the files of this node, so that a change of the project needs no new
image. Every guest has a user network, in which this machine is the gateway; nothing of it needs privileges.
"""

import compileall
import hashlib
import inspect
import io
import json
import os
import platform
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from e2e import containerd, control_plane, disk, guest
from e2e.api import SECONDS, Document, until
from e2e.control_plane import ControlPlane
from e2e.egress import NODE_NETWORK, POD_NETWORK
from e2e.guest import Node, Shape
from e2e.guest_kubelet import (
    ARCHIVE,
    AUTHORITY,
    IMAGES,
    KUBELET,
    KUBELET_ACCESS,
    NODE,
    PLUGIN_NAMES,
    PLUGINS,
    PORT,
    RUNTIME,
    TUNNEL_PORT,
)
from e2e.kernel_modules import load_order, read_dependencies

CACHE = "ALIGNUP_GUEST_CACHE"  #: the directory of images
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "runc", "ctr", "mount", "umount")
MODULES = ("virtio_pci", "virtio_net", "overlay", "bridge", "veth")  #: beside those that they need
NETWORK_PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))  #: directories that may have them
SIZE = 1500  #: MiB of the image

#: CPU 0 and 128 MiB of NUMA node 0 are reserved.
NARROW = Shape(2, 2, 2, tuple(Node(384, f"{2 * node}-{2 * node + 1}") for node in range(4)))
WIDE = Shape(2, 2, 2, (Node(768, "0-3"), Node(768, "4-7")))

_REPOSITORY = Path(__file__).parents[1]
_INIT = f"""{disk.PREPARE}
while read module; do /bin/busybox insmod /modules/$module.ko; done < /modules/order
/bin/busybox tar x -C / -f /dev/nvme1n1
{disk.PYTHON} -m e2e.guest_kubelet
/bin/busybox poweroff -f
"""


def missing(places: Sequence[Path] | None = None) -> str | None:
    """Return why a cluster of guests with the programs in *places* (default: all) cannot run here; ``None``: it can."""
    return control_plane.missing(KUBERNETES, places) or guest.missing_node() or _missing_modules() or _missing_plugins()


def kubelet_config(**fields: object) -> Document:
    """Return a KubeletConfiguration with all managers, and with *fields* instead of its own."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{RUNTIME / 'containerd.sock'}",
        "failSwapOn": False,
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "topologyManagerPolicy": "single-numa-node",
        "reservedSystemCPUs": "0",
        "systemReserved": {"memory": "100Mi"},
        "evictionHard": {"memory.available": "28Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "128Mi"}}],
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": os.fspath(AUTHORITY)},
        },
        "authorization": {"mode": "Webhook"},
        "nodeStatusUpdateFrequency": "2s",
        **fields,
    }


@dataclass
class ClusterGuest:
    """A guest that becomes node *name* of a cluster; *number* is that of its network."""

    plane: ControlPlane
    name: str
    shape: Shape
    image: Path
    number: int = 2
    files: Mapping[str, Path] = field(default_factory=dict)  #: path in the guest → file here
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _port: int = field(default=0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def gateway(self) -> str:
        """The address of this machine for the guest."""
        return f"10.0.{self.number}.2"

    @property
    def address(self) -> str:
        """The address of the node."""
        return f"10.0.{self.number}.15"

    @property
    def console(self) -> Path:
        return self.plane.directory / f"{self.name}.console"

    def __enter__(self) -> Self:
        """Boot the guest without waiting."""
        kernel = guest.kernel()
        if kernel is None:
            raise RuntimeError(guest.missing())
        second = self.plane.directory / f"{self.name}.tar"
        _write_tar(second, self._own_files(), self.files)
        self._port, tunnel = control_plane.free_ports(2)
        if self.plane.egress is not None:
            self.plane.egress.add_guest(self.number, tunnel)
        network = (
            f"net={NODE_NETWORK.format(self.number)},host={self.gateway},dns=10.0.{self.number}.3,"
            f"hostfwd=tcp:127.0.0.1:{self._port}-{self.address}:{PORT},"
            f"hostfwd=tcp:127.0.0.1:{tunnel}-{self.address}:{TUNNEL_PORT}"
        )
        command = list(guest.qemu_command(self.shape, (self.image, second), kernel, network=network))
        out = self._stack.enter_context(self.console.open("wb"))
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._stack.close()

    def ask(self, do: str, **arguments: object) -> Any:  # noqa: ANN401 - JSON
        """Call a method of :class:`e2e.guest_kubelet.KubernetesNode`; return its result."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=SECONDS) as line:
            line.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            with line.makefile("rb") as reader:
                raw = reader.readline()
        if not raw:
            raise ConnectionResetError(f"node {self.name} does not answer")
        answer = json.loads(raw)
        if "error" in answer:
            raise RuntimeError(f"{do} on node {self.name}: {answer['error']}")
        return answer["result"]

    def wait_booted(self) -> None:
        """Wait until the guest answers and its container runtime has the images."""

        def answers() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"guest {self.name} stopped:\n{self.console_tail()}")
            try:
                self.ask("wait_runtime")
            except OSError:
                return False
            return True

        until(f"guest {self.name} has booted", answers, detail=self.console_tail)

    def console_tail(self) -> str:
        """Return the end of what the guest has printed."""
        return self.console.read_text("utf-8", "replace")[-4000:]

    def kubeconfig(self, token: str) -> str:
        """Return a kubeconfig for use in the guest."""
        with tempfile.TemporaryDirectory() as scratch:
            return self.plane.kubeconfig(Path(scratch) / "config", {"token": token}, address=self.gateway).read_text()

    def _own_files(self) -> dict[str, str]:
        told = {
            "name": self.name,
            "address": self.address,
            "gateway": self.gateway,
            "api_address": control_plane.SERVICE_ADDRESS,  # of the API server for pods, forwarded to its port here
            "api_port": self.plane.port,
            "pods": POD_NETWORK.format(self.number),
            "setup": guest.setup_script(self.shape),
        }
        return {
            os.fspath(NODE): json.dumps(told),
            os.fspath(KUBELET_ACCESS): self.kubeconfig(control_plane.node_token(self.name)),
            os.fspath(AUTHORITY): self.plane.certificate.read_text(),
        }


def image(programs: Path | None = None) -> Path:
    """Return the image of all guests with the kubelet in *programs*, from the cache if nothing in it has changed."""
    place = Path(os.environ.get(CACHE) or Path(tempfile.gettempdir()) / f"alignup-guest-cache-{os.getuid()}")
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"kubernetes-node-{_image_key(programs)}.ext4"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            root = disk.fill(
                Path(scratch) / "root", extras=("agent", "cluster"), programs=PROGRAMS, init=_INIT, project=False
            )
            _add_kubernetes(root, programs)
            disk.pack(root, Path(scratch) / "image", size=SIZE).rename(path)
    return path


def _add_kubernetes(root: Path, programs: Path | None) -> None:
    containerd.archive(root / ARCHIVE.relative_to("/"), IMAGES)
    files = {KUBELET: control_plane.program("kubelet", programs)}
    files |= {PLUGINS / path.name: path for path in _network_plugins()}
    for place, source in files.items():
        target = root / place.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        target.chmod(0o755)
    modules = _modules()
    (root / "modules").mkdir()
    (root / "modules" / "order").write_text("".join(f"{name}\n" for name in modules))
    for name, path in modules.items():
        (root / "modules" / f"{name}.ko").write_bytes(path.read_bytes())


def _image_key(programs: Path | None) -> str:
    """Return a text that changes with the content of the image."""
    code = [inspect.getsource(part) for part in (image, _add_kubernetes)]
    code += [inspect.getsource(part) for part in (disk, containerd)]
    digest = hashlib.sha256(f"{_INIT}{IMAGES}{MODULES}{PROGRAMS}{SIZE}{code}{platform.python_version()}".encode())
    for path in (
        *(control_plane.program(name, programs) for name in ("kubelet", *PROGRAMS)),
        *_modules().values(),
        *_network_plugins(),
        Path(sys.base_prefix),
    ):
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    digest.update((_REPOSITORY / "lock" / "dev.txt").read_bytes())
    return digest.hexdigest()[:16]


def _modules() -> dict[str, Path]:
    """Return the kernel modules that guests need, as far as they exist, in the order in which they are loaded."""
    kernel = guest.kernel()
    if kernel is None:
        return {}
    release = kernel.name.removeprefix("vmlinuz-")
    for place in (kernel.parents[1] / "lib" / "modules" / release, Path("/lib/modules") / release):
        modules = {path.stem.replace("-", "_"): path for path in place.rglob("*.ko")}
        if modules:
            order = load_order(MODULES, read_dependencies(place))
            return {name: modules[name] for name in order if name in modules}
    return {}


def _missing_modules() -> str | None:
    kernel = guest.kernel()
    absent = [name for name in MODULES if name not in _modules()]
    if not absent or kernel is None:
        return None
    place = kernel.parents[1] / "lib" / "modules" / kernel.name.removeprefix("vmlinuz-")
    return (
        f"no kernel modules {', '.join(absent)} in {place}: dpkg-deb -x the package of the kernel with its lib/modules"
    )


def _network_plugins() -> list[Path]:
    """Return the CNI plugins that guests need, as far as they exist."""
    candidates = ([place / name for place in NETWORK_PLUGINS if (place / name).is_file()] for name in PLUGIN_NAMES)
    return [paths[0] for paths in candidates if paths]


def _missing_plugins() -> str | None:
    if len(_network_plugins()) == len(PLUGIN_NAMES):
        return None
    return "no CNI plugins in /usr/lib/cni (Debian: apt-get install containernetworking-plugins)"


def _write_tar(path: Path, texts: Mapping[str, str], files: Mapping[str, Path]) -> None:
    """Write the second disk of a guest: the project with its compiled modules, *texts* and *files*."""
    source, tests = _REPOSITORY / "src" / "alignup", _REPOSITORY / "e2e"
    for directory in (source, tests):
        compileall.compile_dir(directory, quiet=1)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as packed:
        packed.add(source, "src/alignup")
        packed.add(tests, "src/e2e")
        for name, file in files.items():
            packed.add(file, name.lstrip("/"))
        for name, text in texts.items():
            member = tarfile.TarInfo(name.lstrip("/"))
            content = text.encode()
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
