"""The settings of the topology manager: policy, scope, options and feature gates, and their valid combinations.

Errors are the kubelet's own texts, so that they can be searched for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self

from alignup.align.bits import parse_integer, quote
from alignup.align.errors import ParseError, SettingsError
from alignup.align.release import NEWEST, STRATEGY_PREVIEW, FeatureStage, Release


class Policy(StrEnum):
    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise SettingsError(f"unknown policy: {quote(str(value))}")


class Scope(StrEnum):
    """The unit of alignment: each container, or the pod as a whole."""

    CONTAINER = "container"
    POD = "pod"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise SettingsError(f"unknown scope: {quote(str(value))}")


FEATURE_GATES = NEWEST.gates  #: the gates that affect alignment


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """The feature gates of a kubelet of one release; unchanged gates have the defaults of the release."""

    changed: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    release: Release = NEWEST

    def __post_init__(self) -> None:
        for name, on in self.changed.items():
            gate = self.release.gates.get(name)
            if gate and gate.locked and on is not gate.default:
                value, default = str(on).lower(), str(gate.default).lower()
                raise SettingsError(f"cannot set feature gate {name} to {value}, feature is locked to {default}")

    def on(self, name: str) -> bool:
        """Return whether gate *name* is on; a gate that the release does not know is off.

        ``KeyError`` if it is neither set nor in ``FEATURE_GATES``.
        """
        if name in self.changed:
            return self.changed[name]
        if name in FEATURE_GATES and name not in self.release.gates:
            return False
        return self.release.gates[name].default


class AllocationStrategy(StrEnum):
    """Which of equally fit sets of NUMA nodes wins; a preview."""

    NONE = "none"
    MOST_ALLOCATED = "most-allocated"
    LEAST_ALLOCATED = "least-allocated"


KUBELET_MAX_NODES = 8  #: the kubelet's default limit on the number of NUMA nodes


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    prefer_closest: bool = False  #: of sets of one width, prefer the one whose nodes are closest together
    max_nodes: int = KUBELET_MAX_NODES  #: the largest number of NUMA nodes allowed
    strategy: AllocationStrategy = AllocationStrategy.NONE
    weights: tuple[tuple[str, int], ...] = ()  #: of resources in the strategy; others weigh 1

    @classmethod
    def parse(cls, options: Mapping[str, str], *, gates: FeatureGates, base: Self | None = None) -> Self:
        """Parse ``topologyManagerPolicyOptions``; missing options keep the values of *base*."""
        values: dict[str, Any] = {}
        for name, value in sorted(options.items()):
            stage = gates.release.options.get(name) if name in _ALL_OPTIONS else None
            check_stage(name, stage, gates, manager="Topology")
            option = _ALL_OPTIONS[name]
            values[option.field] = option.parse(name, value)
        return replace(base or cls(), **values)


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """All settings of the topology manager; text becomes a policy or scope; ``SettingsError`` for any other text.

    ``limit_nodes`` rejects machines with more than ``TopologyOptions.max_nodes`` NUMA nodes, as the kubelet does. It
    can be turned off, since merging here is fast even on 64 nodes.
    """

    policy: Policy = Policy.NONE
    scope: Scope = Scope.CONTAINER
    options: TopologyOptions = TopologyOptions()
    limit_nodes: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", Policy(self.policy))
        object.__setattr__(self, "scope", Scope(self.scope))

    @classmethod
    def parse(
        cls, policy: str, scope: str, *, options: Mapping[str, str], gates: FeatureGates, limit_nodes: bool = True
    ) -> Self:
        """Parse the fields of a KubeletConfiguration with the kubelet's checks; policy none ignores the others."""
        if policy == Policy.NONE:
            return cls(limit_nodes=limit_nodes)
        topology = TopologyOptions.parse(options, gates=gates)
        return cls(policy=Policy(policy), scope=Scope(scope), options=topology, limit_nodes=limit_nodes)

    def check_machine(self, *, nodes: int, distances: bool) -> None:
        """Raise if the kubelet would not start on a machine with this many NUMA nodes, or without distances."""
        if self.policy is Policy.NONE:
            return
        if self.options.prefer_closest and not distances:
            raise SettingsError("cannot discover NUMA topology: error getting NUMA distances from cadvisor")
        if self.limit_nodes and nodes > self.options.max_nodes:
            raise SettingsError(f"unsupported on machines with more than {self.options.max_nodes} NUMA Nodes")


def check_stage(option: str, stage: FeatureStage | None, gates: FeatureGates, *, manager: str) -> None:
    """Raise if *option* of the CPU or Topology *manager* is unknown (``None``), or if its stage is not enabled."""
    if stage is None:
        raise SettingsError(f"unknown {manager} Manager Policy option: {quote(option)}")
    if stage is not FeatureStage.GA and not gates.on(f"{manager}ManagerPolicy{stage.capitalize()}Options"):
        options = f"{manager} Manager Policy {stage.capitalize()}-level Options"
        options = options if manager == "CPU" else options.lower()
        raise SettingsError(f"{options} not enabled, but option {quote(option)} provided")


def parse_bool(option: str, value: str) -> bool:
    """Parse a boolean option as Go does: ``1 t T TRUE true True`` and ``0 f F FALSE false False``."""
    if value in {"1", "t", "T", "TRUE", "true", "True"}:
        return True
    if value in {"0", "f", "F", "FALSE", "false", "False"}:
        return False
    raise SettingsError(
        f"bad value for option {quote(option)}: strconv.ParseBool: parsing {quote(value)}: invalid syntax"
    )


def _parse_max_nodes(option: str, value: str) -> int:
    try:
        most = parse_integer(value)
    except ParseError as error:
        raise SettingsError(f"unable to convert policy option to integer {quote(option)}: {error}") from None
    if most < KUBELET_MAX_NODES:
        raise SettingsError(f"the minimum value of {quote(option)} should not be less than {KUBELET_MAX_NODES}")
    return most


def _parse_strategy(option: str, value: str) -> AllocationStrategy:
    if value and value not in set(AllocationStrategy):
        names = " ".join(map(quote, sorted(AllocationStrategy)))
        raise SettingsError(f"bad value for option {quote(option)}: {quote(value)} must be one of [{names}]")
    return AllocationStrategy(value or AllocationStrategy.NONE)


def _parse_weights(option: str, value: str) -> tuple[tuple[str, int], ...]:
    try:
        weights = dict(map(_parse_weight, filter(None, map(str.strip, value.split(",")))))
    except ParseError as error:
        raise SettingsError(f"bad value for option {quote(option)}: {error}") from None
    for name, weight in sorted(weights.items()):
        if not 0 <= weight <= 100:
            problem = f"weight for {quote(name)} must be in range [0, 100], got {weight}"
            raise SettingsError(f"bad value for option {quote(option)}: {problem}")
    return tuple(sorted(weights.items()))


def _parse_weight(part: str) -> tuple[str, int]:
    name, equals, weight = map(str.strip, part.partition("="))
    if not equals:
        raise ParseError(f"invalid weight entry {quote(part)}: expected resource=weight")
    if not name:
        raise ParseError(f"empty resource name in weight entry {quote(part)}")
    try:
        return name, parse_integer(weight)
    except ParseError as error:
        raise ParseError(f"invalid weight value for {quote(name)}: {error}") from None


@dataclass(frozen=True, slots=True)
class TopologyOption:
    field: str  #: of :class:`TopologyOptions`
    parse: Callable[[str, str], Any] = parse_bool
    values: str = "true or false"  #: for messages


#: By the kubelet's name. Remedies, comparisons, the options of runs and stored settings all follow this table.
TOPOLOGY_OPTIONS: Mapping[str, TopologyOption] = MappingProxyType(
    {
        "prefer-closest-numa-nodes": TopologyOption("prefer_closest"),
        "max-allowable-numa-nodes": TopologyOption(
            "max_nodes", _parse_max_nodes, values=f"{KUBELET_MAX_NODES} or more"
        ),
    }
)
#: Options that only a release with a preview has.
_PREVIEWED_OPTIONS: Mapping[str, TopologyOption] = MappingProxyType(
    {
        STRATEGY_PREVIEW: TopologyOption("strategy", _parse_strategy),
        "numa-score-weights": TopologyOption("weights", _parse_weights),
    }
)
_ALL_OPTIONS = {**TOPOLOGY_OPTIONS, **_PREVIEWED_OPTIONS}
TOPOLOGY_SWITCHES = tuple(name for name, option in TOPOLOGY_OPTIONS.items() if option.parse is parse_bool)
