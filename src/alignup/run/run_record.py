"""The record of a run: its command, its placement, and its JSON document."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError
from alignup.run.process import ProcessIdentity

RUN_VARIABLE = "ALIGNUP_RUN"  #: in the environment of every process of a run; its value is the run's uid
VERSION = 1  #: of the document

RunDevices = Mapping[str, Mapping[str, NodeSet | None]]  #: resource → id → NUMA nodes; ``None``: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    uid: str
    name: str
    runner: ProcessIdentity  #: the process that started the command
    command: tuple[str, ...]
    since: float  #: seconds since 1970
    cpus: CpuSet
    exclusive: bool  #: whether the CPUs are its own rather than the shared pool
    memory: NodeSet = 0  #: NUMA nodes; empty: any
    devices: RunDevices = field(default_factory=dict)
    cgroup: Path | None = None  #: ``None``: it is placed by affinity and memory policy
    agent: str = ""  #: address of the agent that decided; empty: the user's own ledger
    started: tuple[ProcessIdentity, ...] = ()  #: without a cgroup: the command, and later what it left behind

    def to_document(self) -> dict[str, Any]:
        # By hand: importing msgspec would add a tenth to the time that ``alignup run`` takes.
        return {
            "version": VERSION,
            "uid": self.uid,
            "name": self.name,
            "runner": asdict(self.runner),
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
            "started": list(map(asdict, self.started)),
        }

    @classmethod
    def from_document(cls, document: Any) -> Self:  # noqa: ANN401 - decoded JSON
        """Raises ``EnforceError`` for an invalid document."""
        version = document.get("version") if isinstance(document, dict) else None
        if version != VERSION:
            raise EnforceError(f"unsupported version {version}; this program reads version {VERSION}")
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


def read_identity(document: Mapping[str, Any]) -> ProcessIdentity:
    pid, start, space = (int(document[name]) for name in ("pid", "start", "space"))
    return ProcessIdentity(pid, start, str(document["boot"]), space)
