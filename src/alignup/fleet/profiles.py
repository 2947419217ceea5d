"""The workload profiles of ``generate``: kinds of pods, their frequency, requests and lifetimes.

The figures are made up but typical: a few large pods that need alignment, many small ones, some that do not care.
``docs/simulate.md`` prints these tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class Profile(StrEnum):
    TELCO = "telco"
    TRAINING = "training"
    INFERENCE = "inference"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodKind:
    """One kind of pods.

    ``cpus`` and ``accelerators`` are drawn uniformly from the listed values; a value listed twice is twice as likely.
    With accelerators a pod requests their share of the machine's CPUs and memory instead of ``cpus``. A pod that is
    not ``guaranteed`` requests half of its limits.
    """

    name: str
    weight: int  #: relative frequency
    lifetime: float | tuple[float, float]  #: seconds: the mean if exponential, the bounds if log-uniform
    cpus: tuple[float, ...] = ()
    memory: int = 2  #: GiB per CPU
    accelerators: tuple[int, ...] = ()
    networks: int = 0  #: network devices; with accelerators, one for every four of them but at least one
    huge: int = 0  #: GiB of huge pages
    sidecar: bool = False  #: whether it has a small sidecar
    setup: bool = False  #: whether it has an init container of half a CPU
    guaranteed: bool = True


_TELCO = (
    PodKind(name="upf", weight=2, cpus=(4, 4, 8, 16), networks=2, huge=2, setup=True, lifetime=7 * DAY),
    PodKind(name="du", weight=3, cpus=(2, 4, 4, 8), networks=1, huge=1, lifetime=7 * DAY),
    PodKind(name="control", weight=3, cpus=(1, 2, 2, 4), sidecar=True, lifetime=2 * DAY),
    PodKind(name="oam", weight=2, cpus=(0.25, 0.5, 1), guaranteed=False, lifetime=DAY),
)
_TRAINING = (
    PodKind(name="trainer", weight=6, accelerators=(1, 1, 2, 2, 4, 8), networks=1, lifetime=(HOUR / 2, 2 * DAY)),
    PodKind(name="prepare", weight=3, cpus=(4, 8, 8, 16), memory=4, lifetime=(5 * MINUTE, 4 * HOUR)),
    PodKind(name="notebook", weight=1, accelerators=(1,), sidecar=True, lifetime=(HOUR, 10 * HOUR)),
)
_INFERENCE = (
    PodKind(name="model", weight=5, accelerators=(1, 1, 1, 1, 2), sidecar=True, lifetime=6 * HOUR),
    PodKind(name="embed", weight=3, cpus=(2, 4, 4, 8), memory=4, setup=True, lifetime=2 * HOUR),
    PodKind(name="gateway", weight=2, cpus=(0.5, 1, 2), guaranteed=False, lifetime=DAY),
)

POD_KINDS: Mapping[Profile, tuple[PodKind, ...]] = {
    Profile.TELCO: _TELCO,
    Profile.TRAINING: _TRAINING,
    Profile.INFERENCE: _INFERENCE,
    Profile.MIXED: _TELCO + _TRAINING + _INFERENCE,
}
