"""Cluster files and sweep files, described in ``docs/fleet.md``.

A cluster file lists the hosts of a simulated cluster, in groups; a sweep file the machines, configurations, strategies
and seeds to combine. Machines and configurations are only named here; the caller resolves them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from alignup.align.errors import DocumentError, TraceError
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.simulate.cluster_hosts import MAX_HOSTS
from alignup.simulate.cluster_simulation import RETRIES
from alignup.simulate.generate import Profile
from alignup.simulate.schedulers import STRATEGIES
from alignup.simulate.trace import FirstProblem, check_header, read_bytes, reject_unknown

MAX_BYTES = 1 << 20
MAX_SEEDS = 10_000

#: The fields of each kind of object.
CLUSTER_FIELDS = ("apiVersion", "kind", "groups")
GROUP_FIELDS = ("name", "count", "machine", "devices", "config", "set", "kubernetes-version", "labels")
SWEEP_FIELDS = ("apiVersion", "kind", "machines", "configurations", "strategies", "seeds", "workload", "retries")
CONFIGURATION_FIELDS = ("name", "config", "set", "kubernetes-version")
WORKLOAD_FIELDS = ("generate", "pods", "load", "trace", "rate", "stay")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    name: str
    count: int
    machine: str  #: as for ``--machine``; a relative path is relative to the file
    devices: tuple[str, ...] = ()  #: as for ``--devices``
    config: str = ""  #: a KubeletConfiguration; empty: that of the command, or the kubelet's defaults
    changes: tuple[str, ...] = ()  #: as for ``--set``
    kubernetes_version: str = ""  #: as for ``--kubernetes-version``; empty: that of the command
    labels: Mapping[str, str] = field(default_factory=dict)
    source: ObjectReader | None = field(default=None, repr=False, compare=False)  #: of messages about it


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedConfiguration:
    name: str
    config: str = ""  #: a KubeletConfiguration; empty: the kubelet's defaults
    changes: tuple[str, ...] = ()  #: as for ``--set``
    kubernetes_version: str = ""  #: as for ``--kubernetes-version``
    source: ObjectReader | None = field(default=None, repr=False, compare=False)  #: of messages about it


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadDescription:
    """A generated workload, or a trace."""

    profile: str = ""
    pods: int = 1000
    load: float = 0.9
    trace: str = ""
    rate: float = 1.0
    stay: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    machines: tuple[GroupDescription, ...]
    configurations: tuple[NamedConfiguration, ...]
    strategies: tuple[str, ...]
    seeds: tuple[int, ...]
    workload: WorkloadDescription
    retries: int


def _read_document(path: Path, *, kind: str, fields: tuple[str, ...]) -> ObjectReader:
    """Return the only document of a file, with its type and field names checked; ``TraceError`` if it is unusable."""
    text = read_bytes(path, limit=MAX_BYTES)
    try:
        objects = documents.read(text)
    except DocumentError as error:
        raise TraceError(error.message, file=str(path), line=error.line) from error
    if len(objects) != 1:
        raise TraceError(f"must have one document, not {len(objects)}", file=str(path))
    top = ObjectReader.of(objects[0].value, FirstProblem(file=str(path), text=text))
    check_header(top, kind, fields)
    return top


def read_cluster(path: Path) -> tuple[GroupDescription, ...]:
    """Return the groups of a cluster file; :class:`TraceError` names the place of an error."""
    top = _read_document(path, kind="Cluster", fields=CLUSTER_FIELDS)
    groups = tuple(_read_group(group, path.parent) for group in top.children("groups"))
    if not groups:
        top.error("groups", "Required value")
    return groups


def _read_group(group: ObjectReader, base: Path) -> GroupDescription:
    """Return a group; relative paths are relative to *base*."""
    reject_unknown(group, GROUP_FIELDS)
    return GroupDescription(
        name=group.required("name"),
        count=group.number("count", low=1, high=MAX_HOSTS) or 1,
        machine=_relative(group.required("machine"), base),
        devices=group.strings("devices"),
        config=_relative(group.text("config"), base),
        changes=group.strings("set"),
        kubernetes_version=group.text("kubernetes-version"),
        labels=group.map_of("labels", ObjectReader.text),
        source=group,
    )


def _relative(text: str, base: Path) -> str:
    """Return the file *text* beside the cluster file, if there is one."""
    beside = base / text if text and "\n" not in text and ":" not in text else None
    return str(beside) if beside is not None and beside.exists() else text


def read_sweep(path: Path) -> SweepSpec:
    """Return the sweep of a file; ``TraceError`` names the place of an error."""
    top = _read_document(path, kind="Sweep", fields=SWEEP_FIELDS)
    machines = tuple(_read_group(machine, path.parent) for machine in top.children("machines"))
    configurations = tuple(_configuration(owner, path.parent) for owner in top.children("configurations"))
    strategies = tuple(dict.fromkeys(top.strings("strategies"))) or tuple(STRATEGIES)
    for name in strategies:
        if name not in STRATEGIES:
            top.error("strategies", f"unknown strategy {name}; expected one of {', '.join(STRATEGIES)}")
    for field_name, described in (("machines", machines), ("configurations", configurations)):
        if len({description.name for description in described}) < len(described):
            top.error(field_name, "every name must be given once")
    if not machines:
        top.error("machines", "Required value")
    return SweepSpec(
        machines=machines,
        configurations=configurations or (NamedConfiguration(name="default"),),
        strategies=strategies,
        seeds=tuple(range(top.number("seeds", low=1, high=MAX_SEEDS) or 1)),
        workload=_workload(top.child("workload"), path.parent),
        retries=top.count("retries", default=RETRIES, high=1000),
    )


def _configuration(owner: ObjectReader, base: Path) -> NamedConfiguration:
    reject_unknown(owner, CONFIGURATION_FIELDS)
    config = owner.text("config")
    return NamedConfiguration(
        name=owner.required("name"),
        config=str(base / config) if config else "",
        changes=owner.strings("set"),
        kubernetes_version=owner.text("kubernetes-version"),
        source=owner,
    )


def _workload(owner: ObjectReader, base: Path) -> WorkloadDescription:
    reject_unknown(owner, WORKLOAD_FIELDS)
    profile = owner.choice("generate", tuple(Profile))
    trace = owner.text("trace")
    if bool(profile) is bool(trace):
        owner.error("", "give either generate or trace")
    return WorkloadDescription(
        profile=profile,
        pods=owner.number("pods", low=1, high=1_000_000) or 1000,
        load=_factor(owner, "load", 0.9),
        trace=str(base / trace) if trace else "",
        rate=_factor(owner, "rate", 1.0),
        stay=owner.flag("stay"),
    )


def _factor(owner: ObjectReader, name: str, default: float) -> float:
    if not owner.has(name):
        return default
    try:
        value = float(str(owner.fields[name]))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        owner.error(name, f"Invalid value: {owner.fields[name]}: must be a number greater than 0")
    return value
