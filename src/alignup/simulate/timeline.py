"""How a simulation went over time: what pods held, how many ran, and which were rejected, for plots.

It is computed from the result and its events. What pods held before the first event is not counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from alignup.align.workload.names import CPU
from alignup.simulate.arrivals import PodArrival, WorkloadEvent, ordered
from alignup.simulate.node_simulation import PodOutcome, SimulationResult

MAX_POINTS = 400  #: of a plot; more cannot be told apart
REJECTION_INTERVALS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    times: tuple[float, ...]
    held: Mapping[str, tuple[float, ...]]  #: resource → share of what is allocatable, 0 to 1
    running: tuple[int, ...]  #: admitted pods
    starts: tuple[float, ...]  #: of the intervals in which rejections are counted
    rejections: Mapping[str, tuple[int, ...]]  #: reason → pods rejected in each interval, the most frequent first


def build_timeline(result: SimulationResult, events: Iterable[WorkloadEvent]) -> Timeline:
    found = ordered(events)
    outcomes = iter(result.outcomes)
    present: dict[str, Counter[str]] = {}
    totals: Counter[str] = Counter()
    points: list[tuple[float, Counter[str], int]] = []
    step = max(1, len(found) // MAX_POINTS)
    for number, event in enumerate(found):
        if isinstance(event, PodArrival):
            outcome = next(outcomes)
            if outcome.admitted:
                present[event.pod.uid] = own = _held(outcome)
                totals.update(own)
        elif (own_ := present.pop(event.uid, None)) is not None:
            totals.subtract(own_)
        if number % step == 0 or number == len(found) - 1:
            points.append((event.time, totals.copy(), len(present)))
    limits = {name: stats.total for name, stats in result.usage.items() if stats.total and name != "pods"}
    held = {name: tuple(one[name] / total for _, one, _ in points) for name, total in limits.items()}
    starts, rejections = _rejections(result, found[0].time if found else 0.0)
    return Timeline(
        times=tuple(time for time, _, _ in points),
        held=held,
        running=tuple(count for _, _, count in points),
        starts=starts,
        rejections=rejections,
    )


def _held(outcome: PodOutcome) -> Counter[str]:
    own: Counter[str] = Counter()
    for one in outcome.placements:
        own[CPU] += one.cpus.bit_count()
        for block in one.memory:
            own[block.type] += block.size
        for resource, ids in one.devices.items():
            own[resource] += len(ids)
    return own


def _rejections(result: SimulationResult, first: float) -> tuple[tuple[float, ...], dict[str, tuple[int, ...]]]:
    width = (result.duration or 1.0) / REJECTION_INTERVALS
    counts: dict[str, list[int]] = {reason: [0] * REJECTION_INTERVALS for reason in result.reasons}
    for outcome in result.outcomes:
        if outcome.rejection is not None:
            place = min(int((outcome.time - first) / width), REJECTION_INTERVALS - 1)
            counts[outcome.rejection.reason][place] += 1
    starts = tuple(first + number * width for number in range(REJECTION_INTERVALS))
    return starts, {reason: tuple(numbers) for reason, numbers in counts.items()}
