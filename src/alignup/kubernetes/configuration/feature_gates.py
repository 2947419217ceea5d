"""The feature gates of the kubelet 1.37: for each its default, whether it is locked, and its dependencies.

A kubelet does not start with an unknown gate, with a locked gate set to another value, or with a gate enabled whose
dependencies are disabled. So all gates are listed, not only those that matter to alignment
(``align.settings.FEATURE_GATES``). ``AllAlpha`` and ``AllBeta`` set every gate of that stage that is not set itself.
"""

from collections.abc import Iterator, Mapping

from alignup.align.errors import Problem, ProblemKind
from alignup.align.release import FeatureGate, FeatureStage
from alignup.align.settings import FEATURE_GATES, FeatureGates
from alignup.kubernetes.configuration.fields import KUBELET_TABLES

#: Deprecated gates count as GA: only their own name sets them.
KUBELET_GATES: Mapping[str, FeatureGate] = {
    name: FeatureGate(FeatureStage(group["stage"]), default=group["default"], locked=group["locked"])
    for group in KUBELET_TABLES["gates"]
    for name in group["names"]
}
#: A required gate → the gates that depend on it.
_DEPENDENTS: Mapping[str, list[str]] = KUBELET_TABLES["dependents"]
#: Gate → the gates that it requires, in the kubelet's order.
DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    name: tuple(required for required, dependents in _DEPENDENTS.items() if name in dependents)
    for name in sorted({name for dependents in _DEPENDENTS.values() for name in dependents})
}

_ALL = {"AllAlpha": FeatureStage.ALPHA, "AllBeta": FeatureStage.BETA}


def problems(chosen: Mapping[str, bool]) -> tuple[Problem, ...]:
    """Return the kubelet's errors about the gates *chosen* in a file; of several it reports random ones."""
    if rejected := tuple(unsettable(chosen)):
        return rejected
    unmet = {name: [need for need in needs if not is_enabled(need, chosen)] for name, needs in DEPENDENCIES.items()}
    return tuple(
        Problem(
            f"featureGates[{name}]", f"{name} is enabled, but depends on features that are disabled: [{' '.join(off)}]"
        )
        for name, off in unmet.items()
        if off and is_enabled(name, chosen)
    )


def unsettable(chosen: Mapping[str, bool]) -> Iterator[Problem]:
    """Yield the problems of the gates that do not exist, or that are locked to another value."""
    for name, on in sorted(chosen.items()):
        field = f"featureGates[{name}]"
        gate = KUBELET_GATES.get(name)
        if gate is None and name not in _ALL:
            yield Problem(field, f"unrecognized feature gate: {name}", ProblemKind.UNKNOWN_GATE)
        if gate and gate.locked and on is not gate.default:
            fixed = str(gate.default).lower()
            message = f"cannot set feature gate {name} to {str(on).lower()}, feature is locked to {fixed}"
            yield Problem(field, message, ProblemKind.LOCKED_GATE)


def resolve(chosen: Mapping[str, bool]) -> FeatureGates:
    """Return the gates that matter to alignment; *chosen* must have no problems."""
    if not chosen:
        return FeatureGates()
    changed = {name: is_enabled(name, chosen) for name in FEATURE_GATES}
    return FeatureGates({name: on for name, on in changed.items() if on is not FEATURE_GATES[name].default})


def is_enabled(name: str, chosen: Mapping[str, bool]) -> bool:
    if name in chosen:
        return chosen[name]
    gate = KUBELET_GATES[name]
    for word, stage in _ALL.items():
        if word in chosen and gate.stage is stage:
            return chosen[word]
    return gate.default
