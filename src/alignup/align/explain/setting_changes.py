"""Find other settings of the host that admit a pod.

Candidates are a more permissive policy, the other scope, and options of the topology and CPU managers: each alone, and
in pairs only if none suffices alone. Of the policies the strictest that admits is proposed. The CPU and memory
managers' policies stay, since changing them requires draining the node. If pods choose their policy by annotation, the
pod's annotation changes instead of the host's setting.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations, product

from alignup.align.admit import effective_policy
from alignup.align.cpus.options import OPTION_STAGES, CpuPolicy
from alignup.align.explain.changes import (
    CPU_OPTION,
    OWN_POLICY,
    OWN_SCOPE,
    POLICY,
    SCOPE,
    TOPOLOGY_OPTION,
    Proposal,
    SettingChange,
)
from alignup.align.explain.what_if import WhatIf
from alignup.align.settings import TOPOLOGY_OPTIONS, TOPOLOGY_SWITCHES, Policy, Scope, parse_bool

_IRRELEVANT = "strict-cpu-reservation"  #: it affects the shared pool only


def setting_changes(what_if: WhatIf) -> Iterator[Proposal]:
    """Proposals of one setting each; if there are none, one proposal of two."""
    candidates = _candidates(what_if)
    found_single = False
    for one in candidates:
        found = _first(what_if, [(setting,) for setting in one])
        found_single = found_single or found is not None
        yield from () if found is None else (found,)
    if not found_single:
        pair = _first(what_if, (both for one, other in combinations(candidates, 2) for both in product(one, other)))
        yield from () if pair is None else (pair,)


def _first(what_if: WhatIf, ways: Iterable[tuple[SettingChange, ...]]) -> Proposal | None:
    return next((found for settings in ways if (found := what_if.propose(*settings))), None)


def _candidates(what_if: WhatIf) -> list[list[SettingChange]]:
    """The alternatives for each field, smallest change first."""
    settings = what_if.host.settings
    policy, scope = effective_policy(what_if.pod, what_if.host.rules)
    own = settings.pod_policy_annotations
    laxer = list(Policy)[: list(Policy).index(policy)]
    ways = [[SettingChange(OWN_POLICY if own else POLICY, str(policy), str(other)) for other in reversed(laxer)]]
    ways.append(
        [SettingChange(OWN_SCOPE if own else SCOPE, str(scope), str(other)) for other in Scope if other is not scope]
    )
    ways += [
        [_toggle(TOPOLOGY_OPTION + name, on=getattr(settings.topology.options, TOPOLOGY_OPTIONS[name].field))]
        for name in TOPOLOGY_SWITCHES
    ]
    if settings.cpus.policy == CpuPolicy.STATIC:
        options = settings.cpus.options
        ways += [
            [_toggle(CPU_OPTION + name, on=parse_bool(name, options.get(name, "false")))]
            for name in OPTION_STAGES
            if name != _IRRELEVANT
        ]
    return ways


def _toggle(field: str, *, on: bool) -> SettingChange:
    return SettingChange(field, str(on).lower(), str(not on).lower())
