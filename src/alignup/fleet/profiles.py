"""What workloads look like: kinds of pods, how often they come, what they ask for, how long they stay.

The figures are made up, but of the sort that platform teams know: a few large pods that want to be aligned, many small
ones, some that do not care. They are tables, so that a person can read them and ``docs/simulate.md`` can print them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class Profile(StrEnum):
    """Whose workload it is."""

    TELCO = "telco"
    TRAINING = "training"
    INFERENCE = "inference"
    MIXED = "mixed"


class LifetimeDistribution(StrEnum):
    """How lifetimes are distributed."""

    EXPONENTIAL = "exponential"  #: with a mean
    LOG_UNIFORM = "log-uniform"  #: between two ends: as many of 1 to 2 hours as of 2 to 4


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long pods of a kind stay, in seconds."""

    stay: LifetimeDistribution
    low: float  #: the shortest; of exponential ones the mean
    high: float = 0.0  #: the longest; means nothing of exponential ones


@dataclass(frozen=True, slots=True, kw_only=True)
class PodKind:
    """One kind of pods.

    ``cpus`` and ``accelerators`` are chosen evenly from what is listed; what is listed twice comes twice as often. With
    accelerators a pod asks for their fair share of the machine's CPUs and memory, in place of ``cpus``. A pod that is
    not ``guaranteed`` asks for half of its CPUs and memory, and is limited to all of it.
    """

    name: str
    weight: int  #: how often it comes, beside the others
    lifetime: Lifetime
    cpus: tuple[float, ...] = ()
    memory: int = 2  #: GiB for each CPU
    accelerators: tuple[int, ...] = ()
    networks: int = 0  #: network devices; beside accelerators one for every four of them, but one at least
    huge: int = 0  #: GiB of huge pages
    sidecar: bool = False  #: a small container starts before and stays beside it
    setup: bool = False  #: an ordinary init container of half a CPU runs first
    guaranteed: bool = True


def _exponential(mean: float) -> Lifetime:
    return Lifetime(LifetimeDistribution.EXPONENTIAL, mean)


def _between(low: float, high: float) -> Lifetime:
    return Lifetime(LifetimeDistribution.LOG_UNIFORM, low, high)


_TELCO = (
    PodKind(name="upf", weight=2, cpus=(4, 4, 8, 16), networks=2, huge=2, setup=True, lifetime=_exponential(7 * DAY)),
    PodKind(name="du", weight=3, cpus=(2, 4, 4, 8), networks=1, huge=1, lifetime=_exponential(7 * DAY)),
    PodKind(name="control", weight=3, cpus=(1, 2, 2, 4), sidecar=True, lifetime=_exponential(2 * DAY)),
    PodKind(name="oam", weight=2, cpus=(0.25, 0.5, 1), guaranteed=False, lifetime=_exponential(DAY)),
)
_TRAINING = (
    PodKind(
        name="trainer", weight=6, accelerators=(1, 1, 2, 2, 4, 8), networks=1, lifetime=_between(HOUR / 2, 2 * DAY)
    ),
    PodKind(name="prepare", weight=3, cpus=(4, 8, 8, 16), memory=4, lifetime=_between(5 * MINUTE, 4 * HOUR)),
    PodKind(name="notebook", weight=1, accelerators=(1,), sidecar=True, lifetime=_between(HOUR, 10 * HOUR)),
)
_INFERENCE = (
    PodKind(name="model", weight=5, accelerators=(1, 1, 1, 1, 2), sidecar=True, lifetime=_exponential(6 * HOUR)),
    PodKind(name="embed", weight=3, cpus=(2, 4, 4, 8), memory=4, setup=True, lifetime=_exponential(2 * HOUR)),
    PodKind(name="gateway", weight=2, cpus=(0.5, 1, 2), guaranteed=False, lifetime=_exponential(DAY)),
)

#: The kinds of pods of each profile; of mixed, all of the others, each as often as at home.
POD_KINDS: Mapping[Profile, tuple[PodKind, ...]] = MappingProxyType(
    {
        Profile.TELCO: _TELCO,
        Profile.TRAINING: _TRAINING,
        Profile.INFERENCE: _INFERENCE,
        Profile.MIXED: _TELCO + _TRAINING + _INFERENCE,
    }
)
