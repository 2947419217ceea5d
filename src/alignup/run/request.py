"""The request of ``alignup run`` and its result, in terms that the local ledger and the agent share."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import EnforceError, ParseError, QuantityError
from alignup.align.quantity import Quantity
from alignup.run.process_memory import NodeMap
from alignup.run.run_record import RUN_VARIABLE, RunDevices

CONTAINER = "run"  #: name of the one container of a run's pod
NO_DEVICE = "NotSchedulable"  #: the reason for rejecting a run whose devices no device plugin provides
GPU = "nvidia.com/gpu"  #: the resource that discovery finds by itself; device ids are UUIDs, as CUDA takes them


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run asks for. Amounts are quantities in Kubernetes notation."""

    uid: str
    name: str
    amounts: Mapping[str, str]
    policy: str | None = None
    scope: str | None = None


class RunRejectedError(Exception):
    """A run is rejected. ``show`` prints the reasons; computing them may take seconds."""

    def __init__(self, reason: str, show: Callable[[], None], *, impossible: bool = False) -> None:
        super().__init__(reason)
        self.show = show
        self.impossible = impossible  #: whether an idle machine would reject it too


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlacement:
    cpus: CpuSet
    exclusive: bool
    nodes: NodeSet  #: of the CPUs
    memory: NodeSet  #: nodes to take memory from; empty: any
    devices: RunDevices
    strict: bool  #: whether the policy requires alignment, so that every part of it must be enforced
    environment: Mapping[str, str] = field(default_factory=dict)  #: variables from device plugins


def parse_amounts(
    *, cpus: str | None, memory: str | None, hugepages: Iterable[str], devices: Iterable[str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for option, name, given in (("--cpus", "cpu", cpus), ("--memory", "memory", memory)):
        if given is not None:
            found[name] = _checked_amount(option, given)
    for option, texts, prefix in (("--hugepages", hugepages, "hugepages-"), ("--device", devices, "")):
        for text in texts:
            name, equals, amount = text.partition("=")
            if not equals or not name or not amount:
                example = "2Mi=64Mi" if prefix else "example.com/gpu=1"
                raise ParseError(f"{option} {text}: invalid value; use a value like {example}")
            if prefix + name in found:
                raise ParseError(f"{option} {text}: {prefix + name} is requested twice")
            found[prefix + name] = _checked_amount(f"{option} {text}", amount)
    return found


def _checked_amount(option: str, amount: str) -> str:
    try:
        Quantity.parse(amount)
    except QuantityError as error:
        raise ParseError(f"{option}: {bits.quote(amount)} is not a quantity, such as 2, 500m or 4Gi") from error
    return amount


def missing_devices(request: RunRequest, placement: Mapping[str, Any]) -> tuple[str, ...]:
    """The requested devices that the placement in a decision document lacks.

    Like the kubelet, the agent ignores requests for devices that no device plugin provides.
    """
    given = placement["given"].get("device", {})
    return tuple(
        name for name, amount in request.amounts.items() if "/" in name and amount != "0" and name not in given
    )


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
    assigned: Mapping[str, Mapping[str, str]] = document["given"]
    exclusive = bits.parse(assigned.get("cpu", {}).get("cpu", ""))
    cpus = exclusive or shared
    if not cpus:
        raise EnforceError("the shared CPU pool is empty: all CPUs are exclusive or reserved")
    memory = 0
    for resource, text in assigned.get("memory", {}).items():
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
            for resource, text in assigned.get("device", {}).items()
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
