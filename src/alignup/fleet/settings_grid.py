"""Settings to compare: some of a host's settings varied, each with each, and the rest as they are.

    combinations(settings, ("policy", "scope", "cpu-options"), machine=machine)

A dimension is one setting, in the kubelet's terms. ``policy`` tries every value, ``policy=none|restricted`` only these.
``cpu-options`` tries every set of the static policy's options whose feature gate is on, and each other option by
itself, so that its error is seen; with values it tries the sets of these. A setting that another one makes meaningless
(the scope beside policy none) is not varied and stands as ``-``.

What a kubelet would not start with stays in the list, with the kubelet's error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from itertools import combinations as picks
from types import MappingProxyType

from alignup.align.cpus.options import OPTION_STAGES, CpuOptions, CpuPolicy
from alignup.align.errors import SettingsError
from alignup.align.host import Host, Settings
from alignup.align.machine import KubeletView, Machine
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.memory.reserved_memory import propose_reserved_memory
from alignup.align.settings import Policy, Scope, TopologyOptions, TopologySettings

NO_OPTIONS = "none"  #: the set of options that has none
NOT_APPLICABLE = "-"  #: instead of a value that would make no difference
_CLOSEST = "prefer-closest-numa-nodes"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to set a host up."""

    choices: Mapping[str, str]  #: dimension → value
    settings: Settings
    error: str = ""  #: why a kubelet would not start like that, in its words; empty: it would
    manager: str | None = None  #: which of its managers would not, where that is known

    @property
    def label(self) -> str:
        """All choices in one line."""
        return " ".join(f"{dimension}={value}" for dimension, value in self.choices.items())


@dataclass(frozen=True, slots=True)
class _Dimension:
    """One setting: whose it is, the values to try beside what is chosen already, and what a value does."""

    manager: str
    values: Callable[[Settings], Iterable[str]]
    change: Callable[[Settings, str, KubeletView], Settings]
    sets: bool = False  #: values are sets of options


def build_grid(base: Settings, dimensions: Iterable[str], *, machine: Machine) -> tuple[Variant, ...]:
    """*base* with every combination of values of *dimensions*; :class:`SettingsError` for a dimension there is not."""
    asked = _asked(dimensions)
    view = machine.kubelet_view()
    variants = [Variant({}, base)]
    # In the order of the table, not of the question: what is meaningless depends on what was chosen before.
    for name in (name for name in DIMENSIONS if name in asked):
        variants = [later for one in variants for later in _varied(one, name, asked[name], view)]
    return tuple(_judged(variant, machine) for variant in variants)


def _asked(dimensions: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Dimension → the values to try; none: all."""
    asked = {}
    for text in dimensions:
        name, _, values = text.partition("=")
        if name not in DIMENSIONS:
            raise SettingsError(f"there is no dimension {name} to compare; there are: {', '.join(DIMENSIONS)}")
        asked[name] = tuple(filter(None, values.split("|")))
    return asked


def _varied(variant: Variant, name: str, asked: Sequence[str], view: KubeletView) -> Iterator[Variant]:
    """*variant* with each value of one dimension more; one that cannot be goes on as it is, with its error."""
    dimension = DIMENSIONS[name]
    possible = tuple(dimension.values(variant.settings))
    if asked and possible != (NOT_APPLICABLE,):
        possible = tuple(_sets(asked)) if dimension.sets else tuple(asked)
    for value in possible:
        choices = {**variant.choices, name: value}
        try:
            settings = variant.settings if value == NOT_APPLICABLE else dimension.change(variant.settings, value, view)
        except SettingsError as error:
            first = variant if variant.error else replace(variant, error=str(error), manager=dimension.manager)
            yield replace(first, choices=choices)
        else:
            yield replace(variant, choices=choices, settings=settings)


def _judged(variant: Variant, machine: Machine) -> Variant:
    """*variant* with the error a kubelet would end with, if it would."""
    if variant.error:
        return variant
    try:
        Host(machine, variant.settings)
    except SettingsError as error:
        return replace(variant, error=str(error), manager=error.manager)
    return variant


def _sets(options: Sequence[str]) -> Iterator[str]:
    """Every set of *options*, small ones first, each as one text."""
    for chosen in chain.from_iterable(picks(options, size) for size in range(len(options) + 1)):
        yield "+".join(chosen) or NO_OPTIONS


def _options(value: str) -> dict[str, str]:
    return {} if value == NO_OPTIONS else dict.fromkeys(value.split("+"), "true")


def _cpu_option_sets(settings: Settings) -> Iterator[str]:
    """Sets of options that may be used, and each that may not; policy none has no options."""
    if settings.cpus.policy == CpuPolicy.NONE:
        yield NO_OPTIONS
        return
    barred = []
    for name in OPTION_STAGES:
        try:
            CpuOptions.parse({name: "true"}, gates=settings.gates)
        except SettingsError:
            barred.append(name)
    yield from _sets([name for name in OPTION_STAGES if name not in barred])
    yield from barred


def _beside_policy(values: Iterable[str]) -> Callable[[Settings], Iterable[str]]:
    """*values* of what means nothing beside policy none, unless pods may choose another."""
    known = tuple(values)

    def possible(settings: Settings) -> Iterable[str]:
        return (
            (NOT_APPLICABLE,)
            if settings.topology.policy is Policy.NONE and not settings.pod_policy_annotations
            else known
        )

    return possible


def _with_policy(settings: Settings, value: str, _: KubeletView) -> Settings:
    TopologySettings.parse(value, Scope.CONTAINER, options={}, gates=settings.gates)
    return replace(settings, topology=replace(settings.topology, policy=Policy(value)))


def _with_scope(settings: Settings, value: str, _: KubeletView) -> Settings:
    TopologySettings.parse(Policy.RESTRICTED, value, options={}, gates=settings.gates)
    return replace(settings, topology=replace(settings.topology, scope=Scope(value)))


def _with_topology_options(settings: Settings, value: str, _: KubeletView) -> Settings:
    before = settings.topology
    parsed = TopologyOptions.parse(_options(value), gates=settings.gates)
    return replace(settings, topology=replace(before, options=replace(parsed, max_nodes=before.options.max_nodes)))


def _with_cpu_policy(settings: Settings, value: str, _: KubeletView) -> Settings:
    return replace(settings, cpus=replace(settings.cpus, policy=value))


def _with_cpu_options(settings: Settings, value: str, _: KubeletView) -> Settings:
    return replace(settings, cpus=replace(settings.cpus, options=_options(value)))


def _with_memory_policy(settings: Settings, value: str, view: KubeletView) -> Settings:
    """With memory managed, what the settings keep back of it, or as much spread over the nodes."""
    if MemoryPolicy.parse(value) is MemoryPolicy.NONE:
        return replace(settings, memory_policy=value, reserved_memory=())
    kept = settings.reserved_memory or propose_reserved_memory(settings.reservation, view)
    return replace(settings, memory_policy=value, reserved_memory=kept)


#: What can be varied, in the order of choosing.
DIMENSIONS: Mapping[str, _Dimension] = MappingProxyType(
    {
        "policy": _Dimension("topology", lambda _: tuple(Policy), _with_policy),
        "scope": _Dimension("topology", _beside_policy(Scope), _with_scope),
        "topology-options": _Dimension(
            "topology", _beside_policy(_sets([_CLOSEST])), _with_topology_options, sets=True
        ),
        "cpu-policy": _Dimension("cpu", lambda _: tuple(CpuPolicy), _with_cpu_policy),
        "cpu-options": _Dimension("cpu", _cpu_option_sets, _with_cpu_options, sets=True),
        "memory-policy": _Dimension("memory", lambda _: tuple(MemoryPolicy), _with_memory_policy),
    }
)
