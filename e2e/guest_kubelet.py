"""A Kubernetes node inside a guest: containerd, a real kubelet, device plugins, DRA drivers, programs of this project.

The guest runs this module, which answers calls over TCP: one JSON object a line, as ``e2e.cluster_guest`` sends them.
Device plugins and DRA drivers run in this process, everything else in processes of its own.
"""
# ruff: noqa: ASYNC220, ASYNC240 - nothing else runs in this process

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.json_format import MessageToDict

from alignup.align import bits
from alignup.align.machine import Device
from alignup.kubernetes.api import ApiClient, find_access
from alignup.run import process
from alignup.testing import ClaimFault, DraDevice, DraDriver, Plugin
from alignup.testing.dra_driver import claim_reader
from alignup.wire import pod_resources_pb2 as wire
from e2e.containerd import PAUSE, Containerd, configuration

Document = dict[str, Any]

#: What the guest is told: ``name``, ``address``, ``gateway``, ``api_address``, ``api_port``, ``pods``, ``setup``.
NODE = Path("/node.json")
PORT = 7000  #: of the calls
TUNNEL_PORT = 7001  #: of connections of the API server to the kubelet and to pods
IMAGE = "localhost/busybox:1"  #: of pods; runs ``sleep`` by default
EXAMPLE = "registry.k8s.io/pause:3.10"  #: of the pods in examples/
DEBUG = "docker.io/library/busybox:stable"  #: of the debugging pods in docs/
IMAGES = (IMAGE, EXAMPLE, DEBUG, PAUSE)
ARCHIVE = Path("/images.tar")
RUNTIME = Path("/c")  #: the directory of containerd
KUBELET = Path("/usr/local/bin/kubelet")
KUBELET_DIR = Path("/var/lib/kubelet")
KUBELET_CONFIG = KUBELET_DIR / "config.yaml"
AUTHORITY = Path("/etc/kubernetes-ca.crt")
KUBELET_ACCESS = Path("/etc/kubelet.kubeconfig")
LOGS = Path("/var/log")
GROUPS = Path("/sys/fs/cgroup")
TIMEOUT = 300.0  #: seconds
STATE_FILES = (
    "cpu_manager_state",
    "memory_manager_state",
    "allocated_pods_state",
    "device-plugins/kubelet_internal_checkpoint",
)

_ID_LENGTH = 64  #: of a container

PLUGINS = RUNTIME / "cni" / "bin"  #: of the network of pods
PLUGIN_NAMES = ("bridge", "host-local", "loopback")


class KubernetesNode:
    """The methods that can be called: the kubelet, device plugins, DRA drivers, and a PodResources client."""

    def __init__(self, node: Document) -> None:
        self.plugins: dict[str, Plugin] = {}
        self.drivers: dict[str, DraDriver] = {}
        self.name, self.address = node["name"], node["address"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._runtime = asyncio.ensure_future(asyncio.to_thread(_start_runtime, node["pods"]))

    async def wait_runtime(self) -> None:
        """Wait until containerd has the images."""
        await asyncio.wait_for(asyncio.shield(self._runtime), TIMEOUT)

    async def start_kubelet(self, config: Document, program: str = os.fspath(KUBELET)) -> None:
        """Start the kubelet with *config*, without waiting."""
        KUBELET_DIR.mkdir(parents=True, exist_ok=True)
        KUBELET_CONFIG.write_text(json.dumps(config))
        await self.start_process(
            "kubelet",
            [
                program,
                f"--config={KUBELET_CONFIG}",
                f"--kubeconfig={KUBELET_ACCESS}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
            ],
        )

    async def start_alignup(self, name: str, words: list[str], module: str = "alignup") -> None:
        """Start a command of this project as the process *name*."""
        await self.start_process(name, [sys.executable, "-m", module, *words])

    async def run_alignup(self, words: list[str]) -> Document:
        """Run a command of this project; return its exit status and output."""
        command = [sys.executable, "-m", "alignup", *words]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        return {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}

    async def start_process(self, name: str, words: list[str]) -> None:
        if await self.is_running(name):
            raise RuntimeError(f"{name} runs")
        with (LOGS / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def stop_process(self, name: str, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait until the process has exited; return its exit status."""
        process = self._processes.pop(name)
        process.send_signal(number)
        return await asyncio.to_thread(process.wait, TIMEOUT)

    async def pause_kubelet(self) -> None:
        """Stop the kubelet between two changes, so that it can be killed.

        It writes each change of the CPUs and of the memory in two steps, and does not start with half a change.
        """
        while True:
            self._processes["kubelet"].send_signal(signal.SIGSTOP)
            if _is_complete(await self.files()):
                return
            self._processes["kubelet"].send_signal(signal.SIGCONT)
            await asyncio.sleep(0.05)

    async def wait_exit(self, name: str) -> int:
        """Wait until a process has exited by itself; return its exit status."""
        return await asyncio.to_thread(self._processes.pop(name).wait, TIMEOUT)

    async def is_running(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    async def log(self, name: str, characters: int = 6000) -> str:
        """Return the end of the log of a process."""
        path = RUNTIME / "containerd.log" if name == "containerd" else LOGS / f"{name}.log"
        return path.read_text("utf-8", "replace")[-characters:] if path.exists() else ""

    async def files(self) -> dict[str, Any]:
        """Return the state files of the kubelet; ``None`` for those that do not exist."""
        paths = [KUBELET_DIR / name for name in STATE_FILES]
        return {path.name: json.loads(path.read_bytes()) if path.exists() else None for path in paths}

    async def snapshot(self) -> Document:
        """Return the state files and the PodResources responses of one moment."""
        while True:
            files = await self.files()
            responses = await self.resources()
            if files == await self.files():
                return {"files": files, **responses}

    async def container_sets(self) -> dict[str, list[str]]:
        """Return the CPUs and the memory nodes that each container may use at one moment, by its id."""
        while True:
            first, second = _container_sets(), _container_sets()
            if first == second:
                return second

    async def container_pages(self) -> dict[str, dict[str, int]]:
        """Return the bytes of private memory that the processes of each container have on each NUMA node, by its id."""
        pages: dict[str, dict[str, int]] = {}
        for group in GROUPS.glob("kubepods/**/cgroup.procs"):
            if len(group.parent.name) == _ID_LENGTH:
                sizes = pages.setdefault(group.parent.name, {})
                for pid in map(int, group.read_text().split()):
                    for node, size in (process.memory_per_node(pid) or {}).items():
                        sizes[str(node)] = sizes.get(str(node), 0) + size
        return pages

    async def restart_runtime(self) -> None:
        """Kill containerd, and start it again; containers run on."""
        await asyncio.to_thread((await self._runtime).restart)

    async def remove(self, names: list[str]) -> None:
        """Remove state files, which must exist."""
        for name in names:
            (KUBELET_DIR / name).unlink()

    async def write(self, path: str, text: str) -> None:
        """Write a file."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)

    async def load_images(self, archive: str, names: list[str]) -> None:
        """Import an archive of container images."""
        await asyncio.to_thread(Containerd(RUNTIME).load, Path(archive), names)

    async def start_plugin(self, resource: str, devices: Mapping[str, list[int] | None]) -> None:
        """Start a device plugin; *devices* has the NUMA nodes of each device by its id, ``None`` without topology."""
        offered = [Device(resource, id_, None if nodes is None else bits.of(nodes)) for id_, nodes in devices.items()]
        plugin = Plugin(resource, offered, directory=KUBELET_DIR / "device-plugins")
        await plugin.__aenter__()
        self.plugins[resource] = plugin
        await asyncio.wait_for(plugin.wait_registered(), TIMEOUT)

    async def stop_plugin(self, resource: str) -> None:
        await self.plugins.pop(resource).__aexit__()

    async def again(self, times: Mapping[str, int]) -> None:
        """Wait until every plugin has registered once more than *times*."""
        for resource, count in times.items():
            await asyncio.wait_for(self.plugins[resource].wait_registered(count + 1), TIMEOUT)

    async def registrations(self) -> dict[str, int]:
        """Return the number of registrations of each plugin."""
        return {resource: plugin.registrations for resource, plugin in self.plugins.items()}

    async def health(self, resource: str, id_: str, health: str) -> None:
        """Change the health of a device, or remove it."""
        if health == "gone":
            self.plugins[resource].remove(id_)
        else:
            self.plugins[resource].set_health(id_, health)

    async def resources(self) -> Document:
        """Return both PodResources responses in the format of recordings."""
        responses = {}
        async with grpc.aio.insecure_channel(f"unix:{KUBELET_DIR}/pod-resources/kubelet.sock") as line:
            for key, method, request, kind in (
                ("podresources_list", "List", wire.ListPodResourcesRequest, wire.ListPodResourcesResponse),
                (
                    "podresources_allocatable",
                    "GetAllocatableResources",
                    wire.AllocatableResourcesRequest,
                    wire.AllocatableResourcesResponse,
                ),
            ):
                ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
                ask = line.unary_unary(f"/v1.PodResourcesLister/{method}")
                response = kind.FromString(await ask(request().SerializeToString()))
                responses[key] = MessageToDict(
                    response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
                )
        return responses

    async def set_devices(self, resource: str, devices: str) -> None:
        """Have a plugin report other devices, such as ``2@0,1@1``."""
        self.plugins[resource].set_devices(devices)

    async def start_driver(self, name: str, devices: list[Document]) -> list[Document]:
        """Start a DRA driver, wait until the kubelet has registered it, and return its ResourceSlices."""
        offered = [DraDevice(**{**device, "numa_nodes": tuple(device.get("numa_nodes", ()))}) for device in devices]
        driver = self.drivers[name] = DraDriver(name, offered, directory=KUBELET_DIR, node=self.name)
        driver.read_claim = claim_reader(ApiClient(find_access(KUBELET_ACCESS)))
        await driver.__aenter__()
        await asyncio.wait_for(driver.wait_registered(), TIMEOUT)
        return driver.slices()

    async def change_driver(self, name: str, to: str) -> None:
        """Call ``stop``, ``start``, ``unregister`` or ``register`` of a DRA driver."""
        await getattr(self.drivers[name], to)()

    async def fail_claim(self, name: str, claim: str, fault: Document) -> None:
        """Inject a fault into one claim of a DRA driver; an empty one removes it."""
        self.drivers[name].inject_claim(claim, ClaimFault(**fault))

    async def driver_state(self, name: str) -> Document:
        """Return the registrations, rejections, calls and prepared claims of a DRA driver."""
        driver = self.drivers[name]
        methods = ("NodePrepareResources", "NodeUnprepareResources")
        return {
            "registrations": driver.registrations,
            "rejections": driver.rejections,
            "prepared": {
                uid: [device.device_name for device in claim.devices] for uid, claim in driver.prepared.items()
            },
            **{
                method: [[claim.uid for claim in request.claims] for request in driver.requests(method)]
                for method in methods
            },
        }


def _prepare_system(hostname: str) -> None:
    """Mount file systems, bring the loopback interface up, and write the few files that programs expect."""
    for words in (
        ("mount", "-t", "cgroup2", "none", os.fspath(GROUPS)),
        ("mount", "-t", "tmpfs", "tmpfs", "/run"),
        ("mount", "--make-rshared", "/"),
        ("busybox", "ip", "link", "set", "lo", "up"),
    ):
        subprocess.run(words, check=True)
    socket.sethostname(hostname)
    for name, text in (
        ("passwd", "root:x:0:0:root:/root:/bin/sh\n"),
        ("group", "root:x:0:\n"),
        ("hosts", "127.0.0.1 localhost\n"),
        ("machine-id", "00000000000000000000000000000001\n"),
        ("resolv.conf", ""),
    ):
        (Path("/etc") / name).write_text(text)


async def _answer_calls(methods: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Call *methods* as asked, one JSON object a line, until the other side closes."""
    while raw := await reader.readline():
        arguments = json.loads(raw)
        try:
            answer = {"result": await getattr(methods, arguments.pop("do"))(**arguments)}
        except Exception as error:  # noqa: BLE001 - sent to the caller
            answer = {"error": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


def _is_complete(files: Document) -> bool:
    """Return whether every CPU is shared or held, and as much memory is reserved as containers hold."""
    cpus, memory = files["cpu_manager_state"], files["memory_manager_state"]
    held = [cpuset for containers in cpus.get("entries", {}).values() for cpuset in containers.values()]
    known = bits.union(map(bits.parse, (cpus["defaultCpuSet"], *held)))
    lists = [blocks for containers in memory.get("entries", {}).values() for blocks in containers.values()]
    tables = [table for node in memory["machineState"].values() for table in node["memoryMap"].values()]
    reserved = sum(table["reserved"] for table in tables)
    return known.bit_count() == os.cpu_count() and reserved == sum(
        block["size"] for blocks in lists for block in blocks
    )


def _container_sets() -> dict[str, list[str]]:
    """Return the contents of the files; containers that end meanwhile are left out."""
    sets = {}
    for group in GROUPS.glob("kubepods/**/cpuset.cpus.effective"):
        if len(group.parent.name) == _ID_LENGTH:
            with suppress(OSError):
                names = ("cpuset.cpus.effective", "cpuset.mems.effective")
                sets[group.parent.name] = [(group.parent / name).read_text().strip() for name in names]
    return sets


def _start_runtime(subnet: str) -> Containerd:
    """Start containerd; pods get addresses of *subnet*."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": addresses}
    networks = RUNTIME / "cni" / "net.d"
    networks.mkdir(parents=True)
    (networks / "10-pods.conflist").write_text(json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}))
    (RUNTIME / "config.toml").write_text(configuration(RUNTIME))
    runtime = Containerd(RUNTIME)
    runtime.start()
    runtime.load(ARCHIVE, IMAGES)
    return runtime


def _connect(node: Document) -> None:
    """Configure the network of the guest."""
    for words in (
        ("link", "set", "eth0", "up"),
        ("addr", "add", f"{node['address']}/24", "dev", "eth0"),
        ("route", "add", "default", "via", node["gateway"]),
        ("addr", "add", f"{node['api_address']}/32", "dev", "lo"),
    ):
        subprocess.run(("busybox", "ip", *words), check=True)


async def _serve(node: Document) -> None:
    methods = KubernetesNode(node)
    server = await asyncio.start_server(
        lambda reader, writer: _answer_calls(methods, reader, writer), node["address"], PORT, limit=1 << 24
    )

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _forward(reader, writer, node["gateway"], node["api_port"])

    tunnel = await asyncio.start_server(_tunnel, node["address"], TUNNEL_PORT)
    async with server, tunnel, await asyncio.start_server(forward, node["api_address"], 443):
        await server.serve_forever()


async def _tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connect the API server with the address that it asks for (HTTP CONNECT)."""
    head = await reader.readuntil(b"\r\n\r\n")
    host, _, port = head.split()[1].decode().rpartition(":")
    await _forward(reader, writer, host, int(port), answer=b"HTTP/1.1 200 OK\r\n\r\n")


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, *, answer: bytes = b""
) -> None:
    """Forward a connection, after an *answer* that it was made."""
    try:
        other_reader, other_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    writer.write(answer)
    await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
    writer.close()


def main() -> None:
    """Set up the guest, and answer calls until it is powered off."""
    node = json.loads(NODE.read_bytes())
    for directory in (LOGS, Path("/var/lib"), Path("/dev/pts"), Path("/dev/shm")):  # noqa: S108
        directory.mkdir(parents=True, exist_ok=True)
    _prepare_system(node["name"])
    (Path("/etc") / "hosts").write_text(f"127.0.0.1 localhost\n{node['address']} {node['name']}\n")
    subprocess.run(("mount", "-t", "devpts", "devpts", "/dev/pts"), check=True)
    _connect(node)
    subprocess.run((sys.executable, "-c", node["setup"]), check=True)
    asyncio.run(_serve(node))


if __name__ == "__main__":
    main()
