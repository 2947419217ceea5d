"""What ``alignup run`` was asked for, and what was given: the words that the ledger and an agent have in common."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError, ParseError
from alignup.enforce.numa_nodes import NodeMap
from alignup.enforce.run_record import RUN_VARIABLE, RunDevices

CONTAINER = "run"  #: the one container that a run is to whoever decides
GPU = "nvidia.com/gpu"  #: what discovery tells of by itself; the ids are UUIDs, which CUDA takes
_MEMORY = ("memory", "hugepages-")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run as it was asked for; amounts are texts as Kubernetes writes quantities."""

    uid: str
    name: str
    amounts: Mapping[str, str]
    policy: str | None = None
    scope: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAllocation:
    """What whoever decides gives to a run."""

    placement: Mapping[str, Any]  #: as the record of a decision has it
    shared: CpuSet  #: the CPUs of those that have none of their own
    devices: RunDevices  #: all that are known, and where they are
    node_map: NodeMap
    strict: bool  #: whether the policy insists, so that nothing may be left undone
    environment: Mapping[str, str] = field(default_factory=dict)  #: what device plugins want it to know


class RunRejectedError(Exception):
    """A run is refused; ``show`` tells why, to whoever waits for it."""

    def __init__(self, reason: str, show: Callable[[], None], *, impossible: bool = False) -> None:
        super().__init__(reason)
        self.show = show
        self.impossible = impossible  #: whether it would be refused on an empty machine too


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlacement:
    """What a run got: CPUs of its own or the shared ones, nodes, devices, and what its plugins want it to know."""

    cpus: CpuSet
    exclusive: bool
    nodes: NodeSet  #: those of the CPUs
    memory: NodeSet  #: those its memory comes from; empty: any
    devices: RunDevices = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def parse_amounts(
    *, cpus: str | None, memory: str | None, hugepages: Iterable[str], devices: Iterable[str]
) -> dict[str, str]:
    """Resource → how much, from what was said on the command line."""
    found = {name: said for name, said in (("cpu", cpus), ("memory", memory)) if said is not None}
    for option, texts, prefix in (("--hugepages", hugepages, "hugepages-"), ("--device", devices, "")):
        for text in texts:
            name, equals, much = text.partition("=")
            if not equals or not name or not much:
                example = "2Mi=64Mi" if prefix else "example.com/gpu=1"
                raise ParseError(f"{option} {text}: write it like {option} {example}")
            if prefix + name in found:
                raise ParseError(f"{option} {text}: {prefix + name} is asked for twice")
            found[prefix + name] = much
    return found


def run_name(said: str | None, command: str, uid: str) -> str:
    """What to call a run: as somebody said, or after its command."""
    if said is not None:
        return said
    plain = re.sub(r"[^a-z0-9]+", "-", Path(command).name.lower()).strip("-")[:40]
    return f"{plain or 'run'}-{uid}"


def resolve_placement(offer: RunAllocation) -> RunPlacement:
    """What an offer comes to on this machine.

    Without memory of its own a run's memory comes from the nodes it was aligned to, or from those of its own CPUs.
    """
    parts: Mapping[str, Mapping[str, str]] = offer.placement["given"]
    own = bits.parse(parts.get("cpu", {}).get("cpu", ""))
    cpus = own or offer.shared
    if not cpus:
        raise EnforceError("no CPUs are left for those that have none of their own: all of them are taken or reserved")
    memory = 0
    for resource, text in parts.get("memory", {}).items():
        where, _, size = text.partition("=")
        if resource.startswith(_MEMORY) and int(size):
            memory |= bits.parse(where)
    if not memory and own:
        hint = offer.placement["hint"]["nodes"]
        memory = bits.parse(hint) if hint else offer.node_map.of(own)
    held = {
        resource: {id_: offer.devices.get(resource, {}).get(id_) for id_ in text.split(",")}
        for resource, text in parts.get("device", {}).items()
        if text
    }
    return RunPlacement(
        cpus=cpus,
        exclusive=bool(own),
        nodes=offer.node_map.of(cpus),
        memory=memory & offer.node_map.with_memory,
        devices=held,
        environment=offer.environment,
    )


def build_environment(wish: RunRequest, given: RunPlacement) -> dict[str, str]:
    """What the command is told about where it is."""
    told = {
        RUN_VARIABLE: wish.uid,
        "ALIGNUP_NAME": wish.name,
        "ALIGNUP_CPUS": bits.show(given.cpus),
        "ALIGNUP_NUMA_NODES": bits.show(given.nodes),
        "ALIGNUP_MEMORY_NODES": bits.show(given.memory),
    }
    for resource, ids in given.devices.items():
        told[f"ALIGNUP_DEVICES_{re.sub('[^A-Z0-9]', '_', resource.upper())}"] = ",".join(ids)
    if GPU in given.devices:
        told["CUDA_VISIBLE_DEVICES"] = ",".join(given.devices[GPU])
    return {**told, **given.environment}
