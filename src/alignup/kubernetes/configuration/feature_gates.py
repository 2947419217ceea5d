"""The feature gates of the kubelets: for each release their defaults, whether they are locked, and their dependencies.

A kubelet does not start with an unknown gate, with a locked gate set to another value, or with a gate enabled whose
dependencies are disabled. So all gates are listed, not only those that matter to alignment (``Release.gates``).
``AllAlpha`` and ``AllBeta`` set every gate of that stage that is not set itself.

In the table, a gate has an entry for each minor release that changes it: ``[33, "alpha", false, false]`` has its stage,
its default and whether it is locked from 1.33 on, and ``[36]`` says that 1.36 has removed it. ``due`` has the gates
that a release is expected to remove or lock, as its developers wrote, where that was not seen done.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from alignup.align.errors import Problem, ProblemKind
from alignup.align.release import NEWEST, FeatureGate, FeatureStage, Release
from alignup.align.settings import FEATURE_GATES, FeatureGates
from alignup.kubernetes.configuration.fields import KUBELET_TABLES

_ALL = {"AllAlpha": FeatureStage.ALPHA, "AllBeta": FeatureStage.BETA}


@cache
def kubelet_gates(release: Release = NEWEST) -> Mapping[str, FeatureGate]:
    """Return all gates of a release; deprecated ones count as GA: only their own name sets them."""
    gates = ((name, _in_release(history, release)) for name, history in KUBELET_TABLES["gates"].items())
    return {name: FeatureGate(FeatureStage(entry[0]), *entry[1:]) for name, entry in gates if entry}


@cache
def dependencies(release: Release = NEWEST) -> Mapping[str, Sequence[str]]:
    """Return gate → the gates that it requires, in the kubelet's order; nothing requires a gate that is removed."""
    gates = ((name, _in_release(history, release)) for name, history in KUBELET_TABLES["dependencies"].items())
    present = kubelet_gates(release)
    required_gates = {name: [need for need in entry[0] if need in present] for name, entry in gates if entry}
    return {name: needs for name, needs in required_gates.items() if needs and name in present}


def _in_release(history: Sequence[Sequence[Any]], release: Release) -> Sequence[Any]:
    """Return the facts of the last entry up to *release*; none if there is no entry."""
    return next((facts for minor, *facts in reversed(history) if minor <= release.minor), ())


def problems(settings: Mapping[str, bool], release: Release = NEWEST) -> tuple[Problem, ...]:
    """Return the kubelet's errors about the gates *settings* in a file; of several it reports random ones."""
    if unsettable_gates := tuple(unsettable(settings, release)):
        return unsettable_gates
    unmet = {
        name: [need for need in needs if not is_enabled(need, settings, release)]
        for name, needs in dependencies(release).items()
    }
    return tuple(
        Problem(
            f"featureGates[{name}]", f"{name} is enabled, but depends on features that are disabled: [{' '.join(off)}]"
        )
        for name, off in unmet.items()
        if off and is_enabled(name, settings, release)
    )


def unsettable(settings: Mapping[str, bool], release: Release = NEWEST) -> Iterator[Problem]:
    """Yield the problems of the gates that do not exist, or that are locked to another value."""
    for name, on in sorted(settings.items()):
        field = f"featureGates[{name}]"
        gate = kubelet_gates(release).get(name)
        if gate is None and name not in _ALL:
            yield Problem(field, f"unrecognized feature gate: {name}", ProblemKind.UNKNOWN_GATE)
        if gate and gate.locked and on is not gate.default:
            locked_value = str(gate.default).lower()
            message = f"cannot set feature gate {name} to {str(on).lower()}, feature is locked to {locked_value}"
            yield Problem(field, message, ProblemKind.LOCKED_GATE)


def expected_problems(settings: Mapping[str, bool], release: Release) -> Iterator[Problem]:
    """Yield what the final *release* may refuse: gates that are due for removal, or to be locked to another value."""
    due = KUBELET_TABLES["due"].get(str(release.minor), {})
    for name, on in sorted(settings.items()):
        gate = kubelet_gates(release).get(name)
        state = next((state for state, names in due.items() if name in names), "")
        if gate and (state == "removed" or (state and on is not gate.default)):
            message = f"{name} is due to be {state} in {release}; this was not seen done up to {release.known_up_to}"
            yield Problem(f"featureGates[{name}]", message)


def resolve(settings: Mapping[str, bool], release: Release = NEWEST) -> FeatureGates:
    """Return the gates that matter to alignment; *settings* must have no problems."""
    if not settings:
        return FeatureGates(release=release)
    states = {name: is_enabled(name, settings, release) for name in release.gates}
    defaults = release.gates
    return FeatureGates({name: on for name, on in states.items() if on is not defaults[name].default}, release)


def affects_alignment(name: str) -> bool:
    return name in FEATURE_GATES or name in _ALL


def is_enabled(name: str, settings: Mapping[str, bool], release: Release = NEWEST) -> bool:
    if name in settings:
        return settings[name]
    gate = kubelet_gates(release)[name]
    for word, stage in _ALL.items():
        if word in settings and gate.stage is stage:
            return settings[word]
    return gate.default
