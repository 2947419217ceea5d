"""What one run was given, in the terms of the kernel: what to see to, what to look after, and how to write it down."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError
from alignup.enforce.process import ProcessIdentity

RUN_VARIABLE = "ALIGNUP_RUN"  #: in the environment of every process of a run, with the run's uid
VERSION = 1  #: of the documents

RunDevices = Mapping[
    str, Mapping[str, NodeSet | None]
]  #: resource → id → the NUMA nodes it is near; ``None``: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run and where it belongs."""

    uid: str
    name: str
    runner: ProcessIdentity  #: who looks after the command
    command: tuple[str, ...]
    since: float  #: seconds since 1970
    cpus: CpuSet
    exclusive: bool  #: whether the CPUs are its own, and not those that all others share
    memory: NodeSet = 0  #: the NUMA nodes its memory comes from; empty: any
    devices: RunDevices = field(default_factory=dict)
    cgroup: Path | None = None  #: ``None``: it is kept by affinity and memory policy alone
    agent: str = ""  #: the address of the agent that decided; empty: the user's own ledger

    def to_document(self) -> dict[str, Any]:
        """As plain JSON values; sets are Linux lists."""
        return {
            "version": VERSION,
            "uid": self.uid,
            "name": self.name,
            "runner": self.runner.to_document(),
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
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The run a document tells of; ``EnforceError`` when it tells of none."""
        try:
            if document["version"] != VERSION:
                raise EnforceError(f"it is of version {document['version']}, and this program knows version {VERSION}")
            return cls(
                uid=str(document["uid"]),
                name=str(document["name"]),
                runner=ProcessIdentity.from_document(document["runner"]),
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
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EnforceError(f"it tells of no run: {type(error).__name__}: {error}") from error
