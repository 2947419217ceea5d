"""The schedulers that can be compared, by name."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from alignup.align.errors import SettingsError
from alignup.simulate.cluster.aggregate_scheduler import AggregateScheduler
from alignup.simulate.cluster.groups import SimulatedHost
from alignup.simulate.cluster.predicting_scheduler import FilteringScheduler, PredictingScheduler
from alignup.simulate.cluster.scheduler import Scheduler, Scoring, TotalsScheduler

DEFAULT = "alignup"

SchedulerFactory = Callable[[Sequence[SimulatedHost]], Scheduler]

STRATEGIES: Mapping[str, SchedulerFactory] = {
    "alignup": PredictingScheduler,
    "alignup-least-allocated": partial(FilteringScheduler, scoring=Scoring.LEAST_ALLOCATED),
    "alignup-most-allocated": partial(FilteringScheduler, scoring=Scoring.MOST_ALLOCATED),
    "aggregate": AggregateScheduler,
    "blind-least-allocated": partial(TotalsScheduler, scoring=Scoring.LEAST_ALLOCATED),
    "blind-most-allocated": partial(TotalsScheduler, scoring=Scoring.MOST_ALLOCATED),
}


def find_strategy(name: str) -> SchedulerFactory:
    if name not in STRATEGIES:
        raise SettingsError(f"unknown strategy {name}; expected one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
