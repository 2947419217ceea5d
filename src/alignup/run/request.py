"""Requests of ``alignup run``, their placements, and the records of runs."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError
from alignup.run.process import NodeMap, ProcessIdentity

CONTAINER = "run"  #: name of the one container of a run's pod
RUN_VARIABLE = "ALIGNUP_RUN"  #: in the environment of every process of a run; its value is the run's uid
RECORD_VERSION = 1  #: of the document of a run
GPU = "nvidia.com/gpu"  #: the resource that discovery finds by itself; device ids are UUIDs, as CUDA takes them

RunDevices = Mapping[str, Mapping[str, NodeSet | None]]  #: resource → id → NUMA nodes; ``None``: unknown


class RunRequest(NamedTuple):
    """What a run asks for. Amounts are quantities in Kubernetes notation."""

    uid: str
    name: str
    amounts: Mapping[str, str]
    policy: str | None = None
    scope: str | None = None
    devices_near: str | None = None  #: demands on the locality of its devices


class RunRejectedError(Exception):
    """A run is rejected. ``show`` prints the reasons; computing them may take seconds."""

    def __init__(self, reason: str, show: Callable[[], None], *, impossible: bool = False) -> None:
        super().__init__(reason)
        self.show = show
        self.impossible = impossible  #: whether an idle machine would reject it too


class RunPlacement(NamedTuple):
    cpus: CpuSet
    exclusive: bool
    nodes: NodeSet  #: of the CPUs
    memory: NodeSet  #: nodes to take memory from; empty: any
    devices: RunDevices
    strict: bool  #: whether the policy requires alignment, so that every part of it must be enforced
    environment: Mapping[str, str] = {}  #: variables from device plugins


class RunRecord(NamedTuple):
    uid: str
    name: str
    runner: ProcessIdentity  #: the process that started the command
    command: tuple[str, ...]
    since: float  #: seconds since 1970
    cpus: CpuSet
    exclusive: bool  #: whether the CPUs are its own rather than the shared pool
    memory: NodeSet = 0  #: NUMA nodes; empty: any
    devices: RunDevices = {}  # noqa: RUF012 - a constant
    cgroup: Path | None = None  #: ``None``: it is placed by affinity and memory policy
    agent: str = ""  #: address of the agent that decided; empty: the user's own ledger
    started: tuple[ProcessIdentity, ...] = ()  #: without a cgroup: the command, and later what it left behind

    def to_document(self) -> dict[str, Any]:
        return {
            "version": RECORD_VERSION,
            "uid": self.uid,
            "name": self.name,
            "runner": self.runner._asdict(),
            "command": list(self.command),
            "since": self.since,
            "cpus": bits.show(self.cpus),
            "exclusive": self.exclusive,
            "memoryNodes": bits.show(self.memory),
            "devices": {
                resource: {id_: None if nodes is None else bits.show(nodes) for id_, nodes in ids.items()}
                for resource, ids in self.devices.items()
            },
            "cgroup": None if self.cgroup is None else str(self.cgroup),
            "agent": self.agent,
            "started": [identity._asdict() for identity in self.started],
        }

    @classmethod
    def from_document(cls, document: Any) -> Self:  # noqa: ANN401 - decoded JSON
        """Raises ``EnforceError`` for an invalid document."""
        version = document.get("version") if isinstance(document, dict) else None
        if version != RECORD_VERSION:
            raise EnforceError(f"unsupported version {version}; this program reads version {RECORD_VERSION}")
        try:
            return cls(
                uid=str(document["uid"]),
                name=str(document["name"]),
                runner=read_identity(document["runner"]),
                command=tuple(map(str, document["command"])),
                since=float(document["since"]),
                cpus=bits.parse(document["cpus"]),
                exclusive=bool(document["exclusive"]),
                memory=bits.parse(document["memoryNodes"]),
                devices={
                    str(resource): {
                        str(id_): None if nodes is None else bits.parse(nodes) for id_, nodes in ids.items()
                    }
                    for resource, ids in document["devices"].items()
                },
                cgroup=None if document["cgroup"] is None else Path(document["cgroup"]),
                agent=str(document["agent"]),
                started=tuple(map(read_identity, document.get("started", ()))),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EnforceError(f"not a run record: {type(error).__name__}: {error}") from error


def missing_devices(request: RunRequest, placement: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the requested devices that the placement in a decision document lacks.

    Like the kubelet, the agent ignores requests for devices that no device plugin provides.
    """
    devices = placement["given"].get("device", {})
    resource_names = [name for name, amount in request.amounts.items() if "/" in name and amount != "0"]
    return tuple(name for name in resource_names if name not in devices)


def run_name(name: str | None, command: str, uid: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", Path(command).name.lower()).strip("-")[:40]
    return f"{plain or 'run'}-{uid}" if name is None else name


def resolve_placement(
    document: Mapping[str, Any], *, shared: CpuSet, devices: RunDevices, node_map: NodeMap, strict: bool
) -> RunPlacement:
    """Translate the placement in a decision document into CPUs and nodes of this machine.

    *shared* is the shared CPU pool, *devices* are all known devices. Without allocated memory, a run with exclusive
    CPUs takes its memory from the nodes it is aligned to, or from the nodes of its CPUs.
    """
    given_resources: Mapping[str, Mapping[str, str]] = document["given"]
    exclusive = bits.parse(given_resources.get("cpu", {}).get("cpu", ""))
    cpus = exclusive or shared
    if not cpus:
        raise EnforceError("the shared CPU pool is empty: all CPUs are exclusive or reserved")
    memory = 0
    for resource, text in given_resources.get("memory", {}).items():
        nodes, _, size = text.partition("=")
        if resource.startswith(("memory", "hugepages-")) and int(size):
            memory |= bits.parse(nodes)
    if not memory and exclusive:
        hint = document["hint"]["nodes"]
        memory = bits.parse(hint) if hint else node_map.of(exclusive)
    return RunPlacement(
        cpus=cpus,
        exclusive=bool(exclusive),
        nodes=node_map.of(cpus),
        memory=memory & node_map.with_memory,
        devices={
            resource: {id_: devices.get(resource, {}).get(id_) for id_ in text.split(",")}
            for resource, text in given_resources.get("device", {}).items()
            if text
        },
        strict=strict,
    )


def build_environment(request: RunRequest, placement: RunPlacement) -> dict[str, str]:
    variables = {
        RUN_VARIABLE: request.uid,
        "ALIGNUP_NAME": request.name,
        "ALIGNUP_CPUS": bits.show(placement.cpus),
        "ALIGNUP_NUMA_NODES": bits.show(placement.nodes),
        "ALIGNUP_MEMORY_NODES": bits.show(placement.memory),
    }
    for resource, ids in placement.devices.items():
        variables[f"ALIGNUP_DEVICES_{re.sub('[^A-Z0-9]', '_', resource.upper())}"] = ",".join(ids)
    if GPU in placement.devices:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(placement.devices[GPU])
    return {**variables, **placement.environment}


def read_identity(document: Mapping[str, Any]) -> ProcessIdentity:
    pid, start, space = (int(document[name]) for name in ("pid", "start", "space"))
    return ProcessIdentity(pid, start, str(document["boot"]), space)
