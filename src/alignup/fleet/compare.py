"""One workload under many settings, side by side: which of them suit it best?

    variants = combinations(settings, ("policy", "scope"), machine=machine)
    with processes() as executor:
        comparison = compare(machine, variants, events, executor=executor)

Any ``concurrent.futures.Executor`` will do; without one the variants are played one after the other. Variants are
ranked by how many pods they admit, then by how many of these are on one NUMA node, then by how few devices, and how few
CPUs, are stranded when demand is highest (``room.stranded``).
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
from alignup.fleet.progress import Progress, ProgressReporter
from alignup.fleet.score import Score
from alignup.fleet.settings_grid import Variant
from alignup.fleet.simulate import run

VERSION = 1  #: of the document; raised when a field changes its meaning or goes away, not when one is added

#: The columns of a table of variants; dimensions stand after the first.
COLUMNS = (
    "rank",
    "admitted",
    "refused",
    "one node",
    "several nodes",
    "anywhere",
    "stranded cpus",
    "stranded devices",
    "reasons",
    "error",
)


@dataclass(frozen=True, slots=True)
class RankedVariant:
    """One variant and what came of it."""

    rank: int  #: from 1; equal scores share one
    variant: Variant
    score: Score


@dataclass(frozen=True, slots=True)
class Comparison:
    """All variants: those that can be are ranked, the others have their error."""

    ranked: tuple[RankedVariant, ...]
    illegal: tuple[Variant, ...]  #: in the order they were given


def compare(  # noqa: PLR0913 - three of them are rarely said
    machine: Machine,
    variants: Iterable[Variant],
    events: Sequence[WorkloadEvent],
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
    now: Callable[[], float] = monotonic,
) -> Comparison:
    """Play *events* on *machine* under each of *variants*; *progress* is told how many are done.

    Interrupted, it leaves no job waiting; those that run already are the executor's to end.
    """
    variants = tuple(variants)
    legal = [variant for variant in variants if not variant.error]
    parcel = pack((machine, ordered(events)))
    scores = _scores(
        executor or SerialExecutor(), parcel, legal, ticker=ProgressReporter(progress, len(legal), now=now)
    )
    played = iter(scores)
    illegal: list[Variant] = []
    ranked: list[tuple[Variant, Score]] = []
    for variant in variants:
        score = variant.error or next(played)
        if isinstance(score, str):
            illegal.append(replace(variant, error=score))
        else:
            ranked.append((variant, score))
    return Comparison(tuple(_ranked(ranked)), tuple(illegal))


def to_document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON values."""
    return {
        "version": VERSION,
        "ranked": [
            {"rank": one.rank, "choices": dict(one.variant.choices), **one.score.to_document()}
            for one in comparison.ranked
        ],
        "illegal": [
            {"choices": dict(one.choices), "manager": one.manager, "error": one.error} for one in comparison.illegal
        ],
    }


def columns(comparison: Comparison) -> tuple[str, ...]:
    """The columns of its table: the rank, the dimensions, the figures."""
    variants = (*(one.variant for one in comparison.ranked), *comparison.illegal)
    dimensions = dict.fromkeys(name for variant in variants for name in variant.choices)
    return (COLUMNS[0], *dimensions, *COLUMNS[1:])


def rows(comparison: Comparison) -> Iterator[Mapping[str, str]]:
    """One row a variant, the best first; illegal ones come last, without a rank. ``report.write_rows`` writes CSV."""
    empty = dict.fromkeys(columns(comparison), "")
    for one in comparison.ranked:
        score = one.score
        yield {
            **empty,
            **one.variant.choices,
            "rank": str(one.rank),
            "admitted": str(score.admitted),
            "refused": str(score.refused),
            "one node": str(score.pods.on_one),
            "several nodes": str(score.pods.on_several),
            "anywhere": str(score.pods.anywhere),
            "stranded cpus": str(score.stranded.cpus),
            "stranded devices": _counts(score.stranded.devices),
            "reasons": _counts(score.reasons),
        }
    for variant in comparison.illegal:
        yield {**empty, **variant.choices, "error": variant.error}


def _scores(
    executor: Executor, parcel: bytes, variants: Iterable[Variant], *, ticker: ProgressReporter
) -> list[Score | str]:
    """What came of each variant."""
    jobs: JobBatch[Score | str] = JobBatch(executor, ticker.done)
    try:
        for variant in variants:
            jobs.submit(score_variant, parcel, pack(variant.settings))
        return jobs.results()
    finally:
        jobs.cancel()


def score_variant(parcel: bytes, settings: bytes) -> Score | str:
    """One job: the machine and the events of *parcel* under *settings*; a text says why there is no score."""
    raise_if_cancelled()
    machine, events = _unpacked(parcel)
    try:
        return Score.of(run(Host(machine, unpack(settings)), events, progress=raise_if_cancelled))
    except WorkLimitError as error:
        return str(error)


@lru_cache(maxsize=1)
def _unpacked(parcel: bytes) -> tuple[Machine, tuple[WorkloadEvent, ...]]:
    """What all jobs have in common, unpacked once a process."""
    machine, events = unpack(parcel)
    return machine, events


def _ranked(scored: Iterable[tuple[Variant, Score]]) -> Iterator[RankedVariant]:
    rank, before = 0, None
    for place, (variant, score) in enumerate(sorted(scored, key=lambda one: one[1].order), start=1):
        if score.order != before:
            rank, before = place, score.order
        yield RankedVariant(rank, variant, score)


def _counts(counts: Mapping[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in counts.items())
