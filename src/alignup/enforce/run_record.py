"""The record of a run: its command, its placement, and its JSON document."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError, ParseError
from alignup.enforce.process import ProcessIdentity
from alignup.schema import codec
from alignup.schema.codec import Document, LinuxList

RUN_VARIABLE = "ALIGNUP_RUN"  #: in the environment of every process of a run; its value is the run's uid
VERSION = 1  #: of the document

RunDevices = Mapping[str, Mapping[str, NodeSet | None]]  #: resource → id → NUMA nodes; ``None``: unknown


class RunDocument(Document, frozen=True):
    uid: str
    name: str
    runner: ProcessIdentity
    command: tuple[str, ...]
    since: float
    cpus: LinuxList
    exclusive: bool
    memory_nodes: LinuxList
    devices: dict[str, dict[str, LinuxList | None]]
    cgroup: str | None
    agent: str
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run, and where it belongs."""

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

    def to_document(self) -> dict[str, Any]:
        document = RunDocument(
            uid=self.uid,
            name=self.name,
            runner=self.runner,
            command=self.command,
            since=self.since,
            cpus=bits.show(self.cpus),
            exclusive=self.exclusive,
            memory_nodes=bits.show(self.memory),
            devices={
                resource: {id_: codec.show_or_none(nodes) for id_, nodes in ids.items()}
                for resource, ids in self.devices.items()
            },
            cgroup=None if self.cgroup is None else str(self.cgroup),
            agent=self.agent,
        )
        builtins: dict[str, Any] = codec.to_builtins(document)
        return builtins

    @classmethod
    def from_document(cls, document: object) -> Self:
        """Raises ``EnforceError`` for an invalid document."""
        version = document.get("version") if isinstance(document, dict) else None
        if version != VERSION:
            raise EnforceError(f"unsupported version {version}; this program reads version {VERSION}")
        try:
            run = codec.convert(document, RunDocument)
            return cls(
                uid=run.uid,
                name=run.name,
                runner=run.runner,
                command=run.command,
                since=run.since,
                cpus=bits.parse(run.cpus),
                exclusive=run.exclusive,
                memory=bits.parse(run.memory_nodes),
                devices={
                    resource: {id_: codec.parse_or_none(nodes) for id_, nodes in ids.items()}
                    for resource, ids in run.devices.items()
                },
                cgroup=None if run.cgroup is None else Path(run.cgroup),
                agent=run.agent,
            )
        except ParseError as error:
            raise EnforceError(f"not a run record: {error}") from error
