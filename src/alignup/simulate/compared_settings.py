"""The comparison of settings: one workload under every combination of values for some settings of a host.

A dimension is one setting, named as in the kubelet. ``policy`` stands for every value, ``policy=none|restricted`` for
these two. ``cpu-options`` stands for every set of the static policy's options whose feature gate is enabled, and for
each other option alone, to show its error; with values, for the sets of these. A setting that has no effect beside
another one (the scope with policy none) is not varied and shown as ``-``. Settings with which a kubelet does not start
are included, with the kubelet's error.

The variants are ranked by admitted pods, then by pods on one NUMA node, then by the fewest devices and CPUs stranded at
peak demand.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, combinations
from operator import attrgetter
from time import monotonic
from typing import Any, NamedTuple

from alignup.align.claims.alignment import HostClaims
from alignup.align.cpus.options import OPTION_STAGES, CpuOptions, CpuPolicy
from alignup.align.display import HtmlTable, Row
from alignup.align.errors import SettingsError, WorkLimitError
from alignup.align.host import Host, Settings
from alignup.align.machine import KubeletView, Machine
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.memory.reserved_memory import propose_reserved_memory
from alignup.align.release import STRATEGY_PREVIEW
from alignup.align.settings import (
    TOPOLOGY_OPTIONS,
    TOPOLOGY_SWITCHES,
    AllocationStrategy,
    Policy,
    Scope,
    TopologyOptions,
)
from alignup.simulate.arrivals import WorkloadEvent, ordered
from alignup.simulate.executors import Engine, SerialEngine, pack, raise_if_cancelled, unpack
from alignup.simulate.node_report import score_document
from alignup.simulate.node_simulation import Progress, ProgressReporter, Score, SimulationResult, run

VERSION = 2  #: of the document; incremented when a field changes its meaning or is removed
NO_OPTIONS = "none"  #: the empty set of options
NOT_APPLICABLE = "-"  #: the value of a setting that has no effect

#: The settings that can be varied, in this order → the kubelet's manager that they configure.
DIMENSIONS: Mapping[str, str] = {
    "policy": "topology",
    "scope": "topology",
    "topology-options": "topology",
    STRATEGY_PREVIEW: "topology",
    "cpu-policy": "cpu",
    "cpu-options": "cpu",
    "memory-policy": "memory",
}

#: The values that a dimension can have; sets of options are built from these.
_KNOWN_VALUES: Mapping[str, Sequence[str]] = {
    "policy": tuple(map(str, Policy)),
    "scope": tuple(map(str, Scope)),
    "topology-options": TOPOLOGY_SWITCHES,
    STRATEGY_PREVIEW: tuple(map(str, AllocationStrategy)),
    "cpu-policy": tuple(map(str, CpuPolicy)),
    "cpu-options": tuple(OPTION_STAGES),
    "memory-policy": tuple(map(str, MemoryPolicy)),
}
#: No options, and a policy that the kubelet knows but does not start with on Linux.
_ALSO_KNOWN = {("topology-options", NO_OPTIONS), ("cpu-options", NO_OPTIONS), ("memory-policy", "BestEffort")}

#: The columns of a table of variants, besides the dimensions.
_RANK, _ERROR = "rank", "error"
_FIGURES: Mapping[str, Callable[[Score], object]] = {
    "admitted": lambda score: score.admitted,
    "rejected": lambda score: score.rejected,
    "one node": lambda score: score.pods.on_one,
    "several nodes": lambda score: score.pods.on_several,
    "anywhere": lambda score: score.pods.anywhere,
    "connected gpus": lambda score: score.connections.connected,
    "paired gpus": lambda score: score.connections.paired,
    "stranded cpus": lambda score: score.stranded.cpus,
    "stranded devices": lambda score: _counts(score.stranded.devices),
    "reasons": lambda score: _counts(score.reasons),
}


@dataclass(frozen=True, slots=True)
class Variant:
    choices: Mapping[str, str]  #: dimension → value
    settings: Settings
    error: str = ""  #: why a kubelet does not start with these settings; empty if it does
    manager: str | None = None  #: the manager that fails, if known

    @property
    def label(self) -> str:
        return " ".join(f"{dimension}={value}" for dimension, value in self.choices.items())


class VariantJob(NamedTuple):
    number: int  #: of the variant
    workload: bytes  #: packed, as the settings
    settings: bytes


class RankedVariant(NamedTuple):
    rank: int  #: from 1; equal scores share a rank
    variant: Variant
    score: Score


@dataclass(frozen=True, slots=True)
class Comparison(HtmlTable):
    ranked: tuple[RankedVariant, ...]
    invalid: tuple[Variant, ...]  #: with their errors, in the order given

    def __repr__(self) -> str:
        best = f", best: {self.ranked[0].variant.label}" if self.ranked else ""
        return f"<Comparison: {len(self.ranked) + len(self.invalid)} variants{best}>"

    def to_rows(self) -> list[Row]:
        """Return one row per variant, the best first and invalid ones last."""
        empty: Row = dict.fromkeys(columns(self), "")
        ranked_rows: list[Row] = []
        for rank, variant, score in self.ranked:
            figures = {name: figure(score) for name, figure in _FIGURES.items()}
            ranked_rows.append({**empty, **variant.choices, _RANK: rank, **figures})
        return ranked_rows + [{**empty, **variant.choices, _ERROR: variant.error} for variant in self.invalid]


def build_grid(base: Settings, dimensions: Iterable[str], *, machine: Machine) -> tuple[Variant, ...]:
    """Return *base* with every combination of *dimensions*; :class:`SettingsError` for unknown names and values."""
    values_by_name = dict(map(_parse_dimension, dimensions))
    view = machine.kubelet_view()
    variants = [Variant({}, base)]
    # In the order of the table: whether a setting has an effect depends on earlier ones.
    for name in (name for name in DIMENSIONS if name in values_by_name):
        variants = [choice for variant in variants for choice in _vary(variant, name, values_by_name[name], view)]
    for index, variant in enumerate(variants):
        if not variant.error:
            try:
                Host(machine, variant.settings)
            except SettingsError as error:
                variants[index] = replace(variant, error=str(error), manager=error.manager)
    return tuple(variants)


def _parse_dimension(text: str) -> tuple[str, list[str]]:
    """Return the name of a dimension and the values to try; no values: all."""
    name, _, values_text = text.partition("=")
    if name not in DIMENSIONS:
        raise SettingsError(f"unknown dimension {name}; expected one of {', '.join(DIMENSIONS)}")
    values = [value for value in values_text.split("|") if value]
    known_values = _KNOWN_VALUES[name]
    parts = (part for value in values for part in (value.split("+") if name.endswith("-options") else [value]))
    for part in parts:
        if part not in known_values and (name, part) not in _ALSO_KNOWN:
            close = difflib.get_close_matches(part, known_values, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SettingsError(f"{name}={part}: expected one of {', '.join(known_values)}{hint}")
    return name, values


def _vary(variant: Variant, name: str, values: Sequence[str], view: KubeletView) -> Iterator[Variant]:
    """Yield *variant* with each value of another dimension; a value that is not available sets the error."""
    possible = tuple(_values(variant.settings, name))
    if values and possible != (NOT_APPLICABLE,):
        possible = tuple(_option_sets(values) if name.endswith("-options") else values)
    for value in possible:
        choices = {**variant.choices, name: value}
        try:
            settings = _change(variant.settings, name, value, view)
        except SettingsError as error:
            yield replace(variant, choices=choices, error=str(error), manager=DIMENSIONS[name])
        else:
            yield replace(variant, choices=choices, settings=settings)


def _option_sets(options: Sequence[str]) -> Iterator[str]:
    """Yield every set of *options*, the smallest first, as ``a+b``."""
    for options_of_set in chain.from_iterable(combinations(options, size) for size in range(len(options) + 1)):
        yield "+".join(options_of_set) or NO_OPTIONS


def _options(value: str) -> dict[str, str]:
    return {} if value == NO_OPTIONS else dict.fromkeys(value.split("+"), "true")


def _values(settings: Settings, name: str) -> Iterable[str]:
    unmerged = settings.topology.policy is Policy.NONE and not settings.pod_policy_annotations
    if name == STRATEGY_PREVIEW and name not in settings.release.options:
        raise SettingsError(f"{name} is a plan: add --preview {name} --kubernetes-version 1.38")
    if unmerged and name in {"scope", "topology-options", STRATEGY_PREVIEW}:
        return (NOT_APPLICABLE,)
    if name == "topology-options":
        return _option_sets(TOPOLOGY_SWITCHES)
    return _cpu_option_sets(settings) if name == "cpu-options" else _KNOWN_VALUES[name]


def _cpu_option_sets(settings: Settings) -> Iterator[str]:
    """Yield the sets of enabled options, and each other option; policy none has no options."""
    if settings.cpus.policy == CpuPolicy.NONE:
        yield NO_OPTIONS
        return
    disabled_options = []
    for name in OPTION_STAGES:
        try:
            CpuOptions.parse({name: "true"}, gates=settings.gates)
        except SettingsError:
            disabled_options.append(name)
    yield from _option_sets([name for name in OPTION_STAGES if name not in disabled_options])
    yield from disabled_options


def _change(settings: Settings, name: str, value: str, view: KubeletView) -> Settings:
    """Return *settings* with a value of one dimension; :class:`SettingsError` if it is invalid."""
    topology, cpus, gates = settings.topology, settings.cpus, settings.gates
    match name:
        case _ if value == NOT_APPLICABLE:
            return settings
        case "policy":
            return replace(settings, topology=replace(topology, policy=Policy(value)))
        case "scope":
            return replace(settings, topology=replace(topology, scope=Scope(value)))
        case "topology-options":
            switched_off: dict[str, Any] = {TOPOLOGY_OPTIONS[switch].field: False for switch in TOPOLOGY_SWITCHES}
            off = replace(topology.options, **switched_off)
            options = TopologyOptions.parse(_options(value), gates=gates, base=off)
            return replace(settings, topology=replace(topology, options=options))
        case _ if name == STRATEGY_PREVIEW:  # without its feature gate: it is a preview
            options = replace(topology.options, strategy=AllocationStrategy(value))
            return replace(settings, topology=replace(topology, options=options))
        case "cpu-policy":
            return replace(settings, cpus=replace(cpus, policy=value))
        case "cpu-options":
            return replace(settings, cpus=replace(cpus, options=_options(value)))
        case _ if MemoryPolicy(value) is MemoryPolicy.NONE:
            return replace(settings, memory_policy=value, reserved_memory=())
        case _:  # reserve memory as the settings do, or else spread the reservation over the nodes
            reserved_memory = settings.reserved_memory or propose_reserved_memory(settings.reservation, view)
            return replace(settings, memory_policy=value, reserved_memory=reserved_memory)


def compare(  # noqa: PLR0913 - six have defaults
    machine: Machine,
    variants: Iterable[Variant],
    events: Sequence[WorkloadEvent],
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
    now: Callable[[], float] = monotonic,
    ignore_missing_devices: bool = False,
    claims: HostClaims | None = None,
    seed: int = 0,
) -> Comparison:
    """Simulate *events* on *machine* under each of *variants*; *progress* gets the number of finished ones.

    Without *engine* they run one after the other. *ignore_missing_devices*, *claims* and *seed* are as in
    ``node_simulation.run``.
    """
    variants = tuple(variants)
    workload = pack((machine, ordered(events), ignore_missing_devices, claims, seed))
    jobs = [
        VariantJob(number, workload, pack(variant.settings))
        for number, variant in enumerate(variants)
        if not variant.error
    ]
    reporter = ProgressReporter(progress, len(jobs), now=now)
    scores: dict[int, Score | str] = {}
    with engine or SerialEngine() as running_engine:
        for number, score in running_engine.results(score_variant, jobs):
            scores[number] = score
            reporter.report(len(scores))
    invalid: list[Variant] = []
    pairs: list[tuple[Variant, Score]] = []
    for number, variant in enumerate(variants):
        score = scores.get(number, variant.error)
        if isinstance(score, str):
            invalid.append(replace(variant, error=score))
        else:
            pairs.append((variant, score))
    keys = sorted(score.sort_key for _, score in pairs)
    ranked_variants = [RankedVariant(keys.index(score.sort_key) + 1, variant, score) for variant, score in pairs]
    return Comparison(tuple(sorted(ranked_variants, key=attrgetter("rank"))), tuple(invalid))


def to_document(comparison: Comparison) -> dict[str, Any]:
    return {
        "version": VERSION,
        "ranked": [
            {"rank": rank, "choices": dict(variant.choices), **score_document(score)}
            for rank, variant, score in comparison.ranked
        ],
        "illegal": [
            {"choices": dict(variant.choices), "manager": variant.manager, "error": variant.error}
            for variant in comparison.invalid
        ],
    }


def columns(comparison: Comparison) -> tuple[str, ...]:
    variants = (*(ranked_variant.variant for ranked_variant in comparison.ranked), *comparison.invalid)
    dimensions = dict.fromkeys(name for variant in variants for name in variant.choices)
    return (_RANK, *dimensions, *_FIGURES, _ERROR)


def rows(comparison: Comparison) -> Iterator[Mapping[str, str]]:
    """Yield the rows as texts, for ``node_report.write_rows``."""
    return ({name: str(value) for name, value in row.items()} for row in comparison.to_rows())


def score_variant(job: VariantJob, *, simulate: Callable[..., SimulationResult] = run) -> tuple[int, Score | str]:
    """Simulate a variant, and return its number with its score, or with the error if there is none."""
    raise_if_cancelled()
    machine, events, lenient, claims, seed = _unpack_workload(job.workload)
    try:
        host = Host(machine, unpack(job.settings))
        parameters = {"ignore_missing_devices": lenient, "claims": claims, "seed": seed}
        result = simulate(host, events, progress=raise_if_cancelled, **parameters)
    except WorkLimitError as error:
        return job.number, str(error)
    return job.number, result.score


_unpack_workload = lru_cache(maxsize=1)(unpack)  # once per process


def _counts(counts: Mapping[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in counts.items())
