"""Sweep files: which machines, configurations, strategies and seeds to combine, described in ``docs/fleet.md``."""

from dataclasses import dataclass, field
from pathlib import Path

from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.simulate.cluster_file import GroupDescription, read_document, read_group
from alignup.simulate.cluster_simulation import RETRIES
from alignup.simulate.generate import Profile
from alignup.simulate.schedulers import STRATEGIES
from alignup.simulate.trace import reject_unknown

KIND = "Sweep"
MAX_SEEDS = 10_000

_FIELDS = ("apiVersion", "kind", "machines", "configurations", "strategies", "seeds", "workload", "retries")
_CONFIGURATION_FIELDS = ("name", "config", "set")
_WORKLOAD_FIELDS = ("generate", "pods", "load", "trace", "rate", "stay")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedConfiguration:
    name: str
    config: str = ""  #: a KubeletConfiguration; empty: the kubelet's defaults
    changes: tuple[str, ...] = ()  #: as for ``--set``
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


def read(path: Path) -> SweepSpec:
    """Return the sweep of a file; ``TraceError`` names the place of an error."""
    top = read_document(path, kind=KIND, fields=_FIELDS)
    machines = tuple(read_group(machine, path.parent) for machine in top.children("machines"))
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
    seeds = top.number("seeds", low=1, high=MAX_SEEDS)
    return SweepSpec(
        machines=machines,
        configurations=configurations or (NamedConfiguration(name="default"),),
        strategies=strategies,
        seeds=tuple(range(1 if seeds is None else seeds)),
        workload=_workload(top.child("workload"), path.parent),
        retries=top.count("retries", default=RETRIES, high=1000),
    )


def _configuration(owner: ObjectReader, base: Path) -> NamedConfiguration:
    reject_unknown(owner, _CONFIGURATION_FIELDS)
    config = owner.text("config")
    return NamedConfiguration(
        name=owner.required("name"),
        config=str(base / config) if config else "",
        changes=owner.strings("set"),
        source=owner,
    )


def _workload(owner: ObjectReader, base: Path) -> WorkloadDescription:
    reject_unknown(owner, _WORKLOAD_FIELDS)
    profile = owner.choice("generate", tuple(Profile))
    trace = owner.text("trace")
    if bool(profile) is bool(trace):
        owner.error("", "give either generate or trace")
    pods = owner.number("pods", low=1, high=1_000_000)
    return WorkloadDescription(
        profile=profile,
        pods=1000 if pods is None else pods,
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
