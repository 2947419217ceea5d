"""A node inside a guest: containerd, an agent and device plugins, driven and observed by one Python process.

Importing modules takes seconds under emulation, so this process imports them once and forks every other. It never uses
gRPC, which does not survive a fork: one child runs the device plugins and the PodResources client.
"""
# ruff: noqa: S603

import asyncio
import http
import http.client
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.json_format import MessageToDict

from alignup.align import bits
from alignup.align.machine import Device
from alignup.cli import entry
from alignup.testing import Plugin, Preference
from alignup.wire import pod_resources_pb2 as wire
from e2e.containerd import PAUSE, Containerd, configuration

Document = dict[str, Any]
Found = TypeVar("Found")

IMAGE = "localhost/bb:local"  #: the image of recorded pods
IMAGES = {IMAGE: "", PAUSE: ""}
ARCHIVE = Path("/images.tar")  #: on the guest's disk
GROUPS = Path("/sys/fs/cgroup")
PLACE = Path(tempfile.gettempdir())
FILES = (  #: cgroup files in recordings
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.mems",
    "cpuset.mems.effective",
    "cpu.max",
    "cpu.weight",
    "memory.max",
    "hugetlb.2MB.max",
)
POLL_SECONDS = 0.3
TIMEOUT = 300.0  #: seconds

_ID_LENGTH = 64  #: a container's cgroup is named after its id


def load() -> None:
    """Import the agent's modules before forking."""
    for name in ("cli.agent", "runs.audit", "agent.daemon", "agent.devices.plugin_wiring", "agent.pods.wiring"):
        importlib.import_module(f"alignup.{name}")


def until(
    what: str,
    happened: Callable[[], Found | None],
    *,
    seconds: float = TIMEOUT,
    detail: Callable[[], str] = lambda: "",
) -> Found:
    """Wait for a true result of *happened* and return it; *detail* is added to the timeout error."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        if time.monotonic() > end:
            raise TimeoutError(f"timed out after {seconds:.0f} s: {what}\n{detail()}")
        time.sleep(POLL_SECONDS)
    return found


def prepare() -> None:
    """Set up the guest: Python modules and the system."""
    load()
    prepare_system("vm")


def prepare_system(hostname: str) -> None:
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


def runtime() -> Containerd:
    """Start a containerd with the images on the disk."""
    place = Path("/run/c")
    place.mkdir()
    (place / "config.toml").write_text(configuration(Path("/run/c"), snapshotter="native"))
    made = Containerd(place)
    made.start()
    made.load(ARCHIVE, IMAGES, snapshotter="native")
    return made


class GrpcPeers:
    """The agent's gRPC peers in a child process: device plugins and a PodResources client."""

    def __init__(self, plugins: Path, lister: Path) -> None:
        ours, theirs = socket.socketpair()
        if not os.fork():
            ours.close()
            asyncio.run(_serve(theirs, plugins, lister))
            os._exit(0)
        theirs.close()
        self._line = ours.makefile("rw", encoding="utf-8")

    def ask(self, do: str, **arguments: object) -> Document:
        """Call a method of the child; return its result."""
        self._line.write(json.dumps({"do": do, **arguments}) + "\n")
        self._line.flush()
        answer: Document = json.loads(self._line.readline())
        if "error" in answer:
            raise RuntimeError(f"{do}: {answer['error']}")
        return answer["result"] or {}


async def _serve(line: socket.socket, directory: Path, lister: Path) -> None:
    line.settimeout(0)
    reader, writer = await asyncio.open_connection(sock=line)
    await answer_calls(PeerMethods(directory, lister), reader, writer)


async def answer_calls(peers: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Call methods of *peers* as asked, one JSON object a line, until the other side closes."""
    while raw := await reader.readline():
        arguments = json.loads(raw)
        try:
            answer = {"result": await getattr(peers, arguments.pop("do"))(**arguments)}
        except Exception as error:  # noqa: BLE001 - sent to the caller
            answer = {"error": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


class PeerMethods:
    """What the child does: device plugins, and a PodResources client."""

    def __init__(self, directory: Path, lister: Path) -> None:
        self.directory, self.pod_resources_socket = directory, lister
        self.plugins: dict[str, Plugin] = {}

    async def start(self, offer: Document) -> None:
        """Start a plugin as described in a recording."""
        devices = [
            Device(offer["resource"], one["id"], None if one["nodes"] is None else bits.of(one["nodes"]))
            for one in offer["devices"]
        ]
        plugin = Plugin(
            offer["resource"],
            devices,
            directory=self.directory,
            preference=Preference.HIGHEST if offer["preferred"] else Preference.NONE,
            endpoint=offer["endpoint"],
        )
        plugin.pre_start = offer["pre_start_required"]
        await plugin.__aenter__()
        self.plugins[offer["resource"]] = plugin
        await asyncio.wait_for(plugin.wait_registered(), TIMEOUT)

    async def stop(self, resource: str) -> None:
        await self.plugins.pop(resource).__aexit__()

    async def again(self, times: Mapping[str, int]) -> None:
        """Wait until every plugin has registered once more than *times*."""
        for resource, count in times.items():
            await asyncio.wait_for(self.plugins[resource].wait_registered(count + 1), TIMEOUT)

    async def registrations(self) -> dict[str, int]:
        """The number of registrations of each plugin."""
        return {resource: plugin.registrations for resource, plugin in self.plugins.items()}

    async def health(self, resource: str, id_: str, health: str) -> None:
        """Change the health of a device, or remove it."""
        if health == "gone":
            self.plugins[resource].remove(id_)
        else:
            self.plugins[resource].set_health(id_, health)

    async def resources(self) -> Document:
        """Both PodResources responses in the format of recordings."""
        found = {}
        async with grpc.aio.insecure_channel(f"unix:{self.pod_resources_socket}") as line:
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
                found[key] = MessageToDict(
                    response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
                )
        return found


@dataclass
class Agent:
    """An agent that can be stopped, killed and restarted."""

    config: Document
    root: Path
    words: tuple[str, ...] = ()  #: more options
    pid: int = 0
    code: int | None = None  #: exit status; ``None``: it runs or was never started

    @property
    def manifests(self) -> Path:
        return self.root / "manifests"

    @property
    def log(self) -> Path:
        return self.root.with_suffix(".log")

    def start(self) -> None:
        """Start it without waiting."""
        self.manifests.mkdir(parents=True, exist_ok=True)
        file = self.root.with_suffix(".json")
        file.write_text(json.dumps(self.config))
        words = ["agent", "--config", str(file), "--root-dir", str(self.root), "--manifest-dir", str(self.manifests)]
        self.code = None
        self.pid = os.fork()
        if not self.pid:
            handle = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os._exit(entry.run([*words, *self.words]))

    def ready(self) -> None:
        """Wait until it is ready."""

        def is_ready() -> bool:
            if not self.running():
                raise RuntimeError(f"the agent exited:\n{self.log.read_text()[-3000:]}")
            return self.is_ready()

        until("the agent is ready", is_ready)

    def running(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is None

    def wait(self) -> int:
        """Wait until it exits by itself; return its exit status."""
        until("the agent exits", lambda: not self.running())
        return self.code or 0

    def end(self, number: int = signal.SIGTERM) -> int:
        """Stop it; return its exit status."""
        os.kill(self.pid, number)
        return self.wait()

    def ask(self, method: str, path: str, body: Document | None = None) -> tuple[int, Any]:
        """Send a request to the API; return status and body."""
        line = _Line(self.root / "agent.sock")
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            line.request(method, path, None if body is None else json.dumps(body), headers)
            answer = line.getresponse()
            text = answer.read().decode()
        finally:
            line.close()
        return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else text

    def get(self, path: str) -> Document:
        """The body of a successful GET."""
        status, answer = self.ask("GET", path)
        if status != http.HTTPStatus.OK:
            raise RuntimeError(f"GET {path}: {status} {answer}")
        found: Document = answer
        return found

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/readyz")[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def pods(self) -> dict[str, Document]:
        """All pods, by uid."""
        return {one["uid"]: one for one in self.get("/v1/pods")["pods"]}


class _Line(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))


def write(folder: Path, manifest: Document) -> None:
    """Write a manifest atomically."""
    name = manifest["metadata"]["name"]
    half = folder / f".{name}.half"
    half.write_text(json.dumps(manifest))
    half.rename(folder / f"{name}.json")


def containers(pods: Iterable[Document]) -> Iterator[tuple[Document, Document, Path]]:
    """Every running container, with its pod and its cgroup."""
    folders = {path.name: path for path in _groups(GROUPS)}
    for pod in pods:
        for one in (pod.get("run") or {}).get("containers", ()):
            if one["state"] == "running" and one["id"] in folders:
                yield pod, one, folders[one["id"]]


def _groups(folder: Path) -> Iterator[Path]:
    """The cgroups of containers, which are named after their ids."""
    for path in folder.iterdir():
        if path.is_dir():
            if len(path.name) == _ID_LENGTH:
                yield path
            yield from _groups(path)


def processes(group: Path) -> list[int]:
    """The processes in a cgroup."""
    return [int(line) for line in (group / "cgroup.procs").read_text().split()]


def held(group: Path) -> Document:
    """The settings of a cgroup in the format of recordings."""
    values = {name: (group / name).read_text().strip() for name in FILES if (group / name).exists()}
    return {**values, "procs": len(processes(group))}


def clear(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
