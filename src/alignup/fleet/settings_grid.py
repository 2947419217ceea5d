"""Builds the settings to compare: every combination of values for some settings of a host.

A dimension is one setting, named as in the kubelet. ``policy`` stands for every value, ``policy=none|restricted`` for
these two. ``cpu-options`` stands for every set of the static policy's options whose feature gate is enabled, and for
each other option alone, to show its error; with values, for the sets of these. A setting that has no effect beside
another one (the scope with policy none) is not varied and shown as ``-``.

Settings with which a kubelet does not start are included, with the kubelet's error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

from alignup.align.cpus.options import OPTION_STAGES, CpuOptions, CpuPolicy
from alignup.align.errors import SettingsError
from alignup.align.host import Host, Settings
from alignup.align.machine import KubeletView, Machine
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.memory.reserved_memory import propose_reserved_memory
from alignup.align.settings import TOPOLOGY_OPTIONS, TOPOLOGY_SWITCHES, Policy, Scope, TopologyOptions, TopologySettings

NO_OPTIONS = "none"  #: the empty set of options
NOT_APPLICABLE = "-"  #: the value of a setting that has no effect


@dataclass(frozen=True, slots=True)
class Variant:
    choices: Mapping[str, str]  #: dimension → value
    settings: Settings
    error: str = ""  #: why a kubelet does not start with these settings; empty if it does
    manager: str | None = None  #: the manager that fails, if known

    @property
    def label(self) -> str:
        return " ".join(f"{dimension}={value}" for dimension, value in self.choices.items())


@dataclass(frozen=True, slots=True)
class _Dimension:
    manager: str
    values: Callable[[Settings], Iterable[str]]  #: the values to try with the settings chosen so far
    change: Callable[[Settings, str, KubeletView], Settings]
    sets: bool = False  #: whether values are sets of options


def build_grid(base: Settings, dimensions: Iterable[str], *, machine: Machine) -> tuple[Variant, ...]:
    """*base* with every combination of values of *dimensions*; :class:`SettingsError` for an unknown dimension."""
    chosen: dict[str, list[str]] = {}  # the values to try; empty: all
    for text in dimensions:
        name, _, values = text.partition("=")
        if name not in DIMENSIONS:
            raise SettingsError(f"unknown dimension {name}; expected one of {', '.join(DIMENSIONS)}")
        chosen[name] = [value for value in values.split("|") if value]
    view = machine.kubelet_view()
    variants = [Variant({}, base)]
    # In the order of the table: whether a setting has an effect depends on earlier ones.
    for name in (name for name in DIMENSIONS if name in chosen):
        variants = [later for one in variants for later in _vary(one, name, chosen[name], view)]
    for index, variant in enumerate(variants):
        if not variant.error:
            try:
                Host(machine, variant.settings)
            except SettingsError as error:
                variants[index] = replace(variant, error=str(error), manager=error.manager)
    return tuple(variants)


def _vary(variant: Variant, name: str, chosen: Sequence[str], view: KubeletView) -> Iterator[Variant]:
    """*variant* with each value of another dimension; an invalid value leaves the settings alone and sets the error."""
    dimension = DIMENSIONS[name]
    possible = tuple(dimension.values(variant.settings))
    if chosen and possible != (NOT_APPLICABLE,):
        possible = tuple(_option_sets(chosen)) if dimension.sets else tuple(chosen)
    for value in possible:
        choices = {**variant.choices, name: value}
        try:
            settings = variant.settings if value == NOT_APPLICABLE else dimension.change(variant.settings, value, view)
        except SettingsError as error:
            first = variant if variant.error else replace(variant, error=str(error), manager=dimension.manager)
            yield replace(first, choices=choices)
        else:
            yield replace(variant, choices=choices, settings=settings)


def _option_sets(options: Sequence[str]) -> Iterator[str]:
    """Every set of *options*, the smallest first, as ``a+b``."""
    for chosen in chain.from_iterable(combinations(options, size) for size in range(len(options) + 1)):
        yield "+".join(chosen) or NO_OPTIONS


def _options(value: str) -> dict[str, str]:
    return {} if value == NO_OPTIONS else dict.fromkeys(value.split("+"), "true")


def _cpu_option_sets(settings: Settings) -> Iterator[str]:
    """The sets of enabled options, and each other option; policy none has no options."""
    if settings.cpus.policy == CpuPolicy.NONE:
        yield NO_OPTIONS
        return
    disabled = []
    for name in OPTION_STAGES:
        try:
            CpuOptions.parse({name: "true"}, gates=settings.gates)
        except SettingsError:
            disabled.append(name)
    yield from _option_sets([name for name in OPTION_STAGES if name not in disabled])
    yield from disabled


def _with_topology_policy(values: Iterable[str]) -> Callable[[Settings], Iterable[str]]:
    """*values* of a setting that has no effect with policy none, unless pods may choose another policy."""
    known = tuple(values)

    def possible(settings: Settings) -> Iterable[str]:
        no_effect = settings.topology.policy is Policy.NONE and not settings.pod_policy_annotations
        return (NOT_APPLICABLE,) if no_effect else known

    return possible


def _with_policy(settings: Settings, value: str, _: KubeletView) -> Settings:
    TopologySettings.parse(value, Scope.CONTAINER, options={}, gates=settings.gates)
    return replace(settings, topology=replace(settings.topology, policy=Policy(value)))


def _with_scope(settings: Settings, value: str, _: KubeletView) -> Settings:
    TopologySettings.parse(Policy.RESTRICTED, value, options={}, gates=settings.gates)
    return replace(settings, topology=replace(settings.topology, scope=Scope(value)))


def _with_topology_options(settings: Settings, value: str, _: KubeletView) -> Settings:
    topology = settings.topology
    off = replace(topology.options, **{TOPOLOGY_OPTIONS[name].field: False for name in TOPOLOGY_SWITCHES})
    options = TopologyOptions.parse(_options(value), gates=settings.gates, base=off)
    return replace(settings, topology=replace(topology, options=options))


def _with_cpu_policy(settings: Settings, value: str, _: KubeletView) -> Settings:
    return replace(settings, cpus=replace(settings.cpus, policy=value))


def _with_cpu_options(settings: Settings, value: str, _: KubeletView) -> Settings:
    return replace(settings, cpus=replace(settings.cpus, options=_options(value)))


def _with_memory_policy(settings: Settings, value: str, view: KubeletView) -> Settings:
    """With policy Static, reserve memory as the settings do, or else spread the reservation over the nodes."""
    if MemoryPolicy.parse(value) is MemoryPolicy.NONE:
        return replace(settings, memory_policy=value, reserved_memory=())
    reserved = settings.reserved_memory or propose_reserved_memory(settings.reservation, view)
    return replace(settings, memory_policy=value, reserved_memory=reserved)


#: The settings that can be varied, in this order.
DIMENSIONS: Mapping[str, _Dimension] = {
    "policy": _Dimension("topology", lambda _: Policy, _with_policy),
    "scope": _Dimension("topology", _with_topology_policy(Scope), _with_scope),
    "topology-options": _Dimension(
        "topology", _with_topology_policy(_option_sets(TOPOLOGY_SWITCHES)), _with_topology_options, sets=True
    ),
    "cpu-policy": _Dimension("cpu", lambda _: CpuPolicy, _with_cpu_policy),
    "cpu-options": _Dimension("cpu", _cpu_option_sets, _with_cpu_options, sets=True),
    "memory-policy": _Dimension("memory", lambda _: MemoryPolicy, _with_memory_policy),
}
