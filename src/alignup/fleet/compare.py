"""Compares settings: one workload under many variants, side by side.

Any ``concurrent.futures.Executor`` works; without one the variants run one after the other. They are ranked by admitted
pods, then by pods on one NUMA node, then by the fewest devices and CPUs stranded at peak demand
(``fragmentation.measure_stranded``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import Any

from alignup.align.errors import WorkLimitError
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.fleet.events import WorkloadEvent, ordered
from alignup.fleet.executors import JobBatch, SerialExecutor, pack, raise_if_cancelled, unpack
from alignup.fleet.report import score_document
from alignup.fleet.settings_grid import Variant
from alignup.fleet.simulate import Progress, ProgressReporter, Score, SimulationResult, run

VERSION = 2  #: of the document; incremented when a field changes its meaning or is removed

#: The columns of a table of variants, besides the dimensions.
_RANK, _ERROR = "rank", "error"
_FIGURES: Mapping[str, Callable[[Score], object]] = {
    "admitted": lambda score: score.admitted,
    "rejected": lambda score: score.rejected,
    "one node": lambda score: score.pods.on_one,
    "several nodes": lambda score: score.pods.on_several,
    "anywhere": lambda score: score.pods.anywhere,
    "stranded cpus": lambda score: score.stranded.cpus,
    "stranded devices": lambda score: _counts(score.stranded.devices),
    "reasons": lambda score: _counts(score.reasons),
}
COLUMNS = (_RANK, *_FIGURES, _ERROR)


@dataclass(frozen=True, slots=True)
class RankedVariant:
    rank: int  #: from 1; equal scores share a rank
    variant: Variant
    score: Score


@dataclass(frozen=True, slots=True)
class Comparison:
    ranked: tuple[RankedVariant, ...]
    invalid: tuple[Variant, ...]  #: with their errors, in the order given


def compare(  # noqa: PLR0913 - three have defaults
    machine: Machine,
    variants: Iterable[Variant],
    events: Sequence[WorkloadEvent],
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
    now: Callable[[], float] = monotonic,
) -> Comparison:
    """Simulate *events* on *machine* under each of *variants*; *progress* gets the number of finished ones.

    An interruption cancels the waiting jobs; the executor ends the running ones.
    """
    variants = tuple(variants)
    valid = [variant for variant in variants if not variant.error]
    reporter = ProgressReporter(progress, len(valid), now=now)
    jobs: JobBatch[Score | str] = JobBatch(executor or SerialExecutor(), reporter.report)
    workload = pack((machine, ordered(events)))
    try:
        for variant in valid:
            jobs.submit(score_variant, workload, pack(variant.settings))
        scores = iter(jobs.results())
    finally:
        jobs.cancel()
    invalid: list[Variant] = []
    scored: list[tuple[Variant, Score]] = []
    for variant in variants:
        score = variant.error or next(scores)
        if isinstance(score, str):
            invalid.append(replace(variant, error=score))
        else:
            scored.append((variant, score))
    keys = sorted(score.sort_key for _, score in scored)
    ranked = [RankedVariant(keys.index(score.sort_key) + 1, variant, score) for variant, score in scored]
    return Comparison(tuple(sorted(ranked, key=lambda one: one.rank)), tuple(invalid))


def to_document(comparison: Comparison) -> dict[str, Any]:
    return {
        "version": VERSION,
        "ranked": [
            {"rank": one.rank, "choices": dict(one.variant.choices), **score_document(one.score)}
            for one in comparison.ranked
        ],
        "illegal": [
            {"choices": dict(one.choices), "manager": one.manager, "error": one.error} for one in comparison.invalid
        ],
    }


def columns(comparison: Comparison) -> tuple[str, ...]:
    variants = (*(one.variant for one in comparison.ranked), *comparison.invalid)
    dimensions = dict.fromkeys(name for variant in variants for name in variant.choices)
    return (_RANK, *dimensions, *_FIGURES, _ERROR)


def rows(comparison: Comparison) -> Iterator[Mapping[str, str]]:
    """One row per variant, the best first and invalid ones last; ``report.write_rows`` writes them as CSV."""
    empty = dict.fromkeys(columns(comparison), "")
    for one in comparison.ranked:
        figures = {name: str(figure(one.score)) for name, figure in _FIGURES.items()}
        yield {**empty, **one.variant.choices, _RANK: str(one.rank), **figures}
    for variant in comparison.invalid:
        yield {**empty, **variant.choices, _ERROR: variant.error}


def score_variant(workload: bytes, settings: bytes, *, simulate: Callable[..., SimulationResult] = run) -> Score | str:
    """Run one job: simulate the packed *workload* under *settings*; returns the error if there is no score."""
    raise_if_cancelled()
    machine, events = _unpack_workload(workload)
    try:
        return simulate(Host(machine, unpack(settings)), events, progress=raise_if_cancelled).score
    except WorkLimitError as error:
        return str(error)


_unpack_workload = lru_cache(maxsize=1)(unpack)  # once per process


def _counts(counts: Mapping[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in counts.items())
