"""The results of a sweep as means over its seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from alignup.simulate.sweeps.tasks import Row

FIGURES = (
    *("started", "failed", "pending", "rejections", "waiting_p50", "waiting_p99"),
    *("mean_distance", "stranded_cpus", "stranded_memory"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationMeans:
    """A machine, a configuration and a strategy: the mean of every figure over the seeds."""

    machine: str
    configuration: str
    strategy: str
    seeds: int
    figures: Mapping[str, float]  #: by column of the results file, :data:`FIGURES`
    requested: Mapping[str, float]  #: share of what is allocatable, by resource
    stranded_devices: Mapping[str, float]  #: by resource

    @property
    def names(self) -> tuple[str, str, str]:
        return self.machine, self.configuration, self.strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidCombination:
    machine: str
    configuration: str
    error: str


def combination_means(rows: Iterable[Row]) -> tuple[CombinationMeans, ...]:
    """In the order of *rows*; those with an error are left out."""
    combined: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if not row["error"]:
            combined.setdefault((row["machine"], row["configuration"], row["strategy"]), []).append(row)
    return tuple(
        CombinationMeans(
            machine=machine,
            configuration=configuration,
            strategy=strategy,
            seeds=len(own),
            figures={name: sum(float(row[name]) for row in own) / len(own) for name in FIGURES},
            requested=_means([row["requested"] for row in own]),
            stranded_devices=_means([row["stranded_devices"] for row in own]),
        )
        for (machine, configuration, strategy), own in combined.items()
    )


def invalid_combinations(rows: Iterable[Row]) -> tuple[InvalidCombination, ...]:
    """With which a kubelet does not start; each once, whatever the strategies and seeds."""
    found = dict.fromkeys((row["machine"], row["configuration"], row["error"]) for row in rows if row["error"])
    return tuple(InvalidCombination(machine=one, configuration=two, error=error) for one, two, error in found)


def _means(cells: Sequence[str]) -> dict[str, float]:
    """Of cells such as ``cpu=0.5 memory=0.25``."""
    found: dict[str, float] = {}
    for cell in cells:
        for item in cell.split():
            name, _, value = item.rpartition("=")
            found[name] = found.get(name, 0.0) + float(value) / len(cells)
    return found
