"""The CPU manager's policy and policy options, parsed and rejected like in the kubelet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from alignup.align.bits import CpuSet, quote
from alignup.align.errors import SettingsError
from alignup.align.quantity import Quantity, read_amount
from alignup.align.release import NEWEST, FeatureStage, Release
from alignup.align.settings import TOPOLOGY_OPTIONS, FeatureGates, Policy, check_stage, parse_bool


class CpuPolicy(StrEnum):
    NONE = "none"
    STATIC = "static"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise SettingsError(f"unknown policy: {quote(str(value))}")


#: The options of the static policy, by the kubelet's names, with their stages in the newest release.
OPTION_STAGES: Mapping[str, FeatureStage] = MappingProxyType(
    {name: stage for name, stage in NEWEST.options.items() if name not in TOPOLOGY_OPTIONS}
)

#: Pairs that exclude each other, in the order they are checked.
_CLASHES = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuOptions:
    """The options of the static policy, named as in the kubelet."""

    full_pcpus_only: bool = False  #: containers own whole cores
    distribute_cpus_across_numa: bool = False  #: a request too large for one node is spread evenly over several
    align_by_socket: bool = False  #: the nodes of a socket count as one node
    distribute_cpus_across_cores: bool = False  #: threads are taken in numeric order, not core by core
    strict_cpu_reservation: bool = False  #: reserved CPUs are not in the shared pool
    prefer_align_cpus_by_uncorecache: bool = False  #: CPUs of one last-level cache are preferred

    @classmethod
    def parse(cls, options: Mapping[str, str], *, gates: FeatureGates) -> Self:
        """Parse ``cpuManagerPolicyOptions``; of several errors, the first by option name is raised."""
        switches = {}
        for name, value in sorted(options.items()):
            stage = gates.release.options.get(name) if name in OPTION_STAGES else None
            check_stage(name, stage, gates, manager="CPU")
            switches[name] = parse_bool(name, value)
        for first, second in _CLASHES:
            if switches.get(first) and switches.get(second):
                raise SettingsError(f"static policy options {first} and {second} can not be used at the same time")
        return cls(**{name.replace("-", "_"): on for name, on in switches.items()})

    def check_machine(self, policy: Policy, *, sockets: int, nodes: int) -> None:
        """Raise if align-by-socket is incompatible with the topology manager *policy* or the machine."""
        if not self.align_by_socket:
            return
        if Policy(policy) is Policy.SINGLE_NUMA_NODE:
            raise SettingsError(
                "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option"
            )
        if sockets > nodes:
            raise SettingsError(
                "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSettings:
    """The CPU settings of a KubeletConfiguration, not parsed yet."""

    policy: str = CpuPolicy.NONE
    options: Mapping[str, str] = field(default_factory=dict)
    reservation: Quantity | None = None  #: kube-reserved and system-reserved CPUs; ``None``: not set
    explicit: CpuSet = 0  #: ``reservedSystemCPUs``; empty: not set

    def __post_init__(self) -> None:
        if self.reservation is not None:
            object.__setattr__(self, "reservation", read_amount("reservation", self.reservation))

    def check_none(self) -> None:
        """Raise ``SettingsError`` if there are options, which the policy ``none`` does not support."""
        if self.options:
            option_list = " ".join(f"{name}:{value}" for name, value in sorted(self.options.items()))
            raise SettingsError(f"new none policy error: None policy: received unsupported options=map[{option_list}]")

    def reserved_count(self, release: Release = NEWEST) -> int:
        """Return the number of reserved CPUs, rounded up; the static policy requires at least one."""
        if self.reservation is None:
            raise SettingsError("[cpumanager] unable to determine reserved CPU resources for static policy")
        if self.reservation.is_zero:
            raise SettingsError(
                "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
            )
        return -(-self.reservation.under(release).milli() // 1000)
