"""Under which other settings of its host would a pod be admitted?

A laxer policy, the other scope, an option of the topology or the CPU manager switched: each alone, and two together
only where none does alone. Of the policies the strictest that admits is proposed. The CPU and memory managers' own
policies stay, since a node is drained before they change. Where pods choose for themselves, the pod's choice changes
and not the host's.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations, product

from alignup.align.admit import effective_policy
from alignup.align.cpus.options import OPTION_STAGES, CpuPolicy
from alignup.align.explain.changes import (
    CLOSEST,
    CPU_OPTION,
    OWN_POLICY,
    OWN_SCOPE,
    POLICY,
    SCOPE,
    Proposal,
    SettingChange,
)
from alignup.align.explain.what_if import WhatIf
from alignup.align.settings import Policy, Scope, parse_bool

_NO_MATTER = "strict-cpu-reservation"  #: it says who shares the reserved CPUs, never who may own which


def setting_changes(trials: WhatIf) -> Iterator[Proposal]:
    """Proposals of one setting each, or one of two where there is none."""
    ways = _ways(trials)
    alone = False
    for one in ways:
        found = _first(trials, [(setting,) for setting in one])
        alone = alone or found is not None
        yield from () if found is None else (found,)
    if not alone:
        pair = _first(trials, (both for one, other in combinations(ways, 2) for both in product(one, other)))
        yield from () if pair is None else (pair,)


def _first(trials: WhatIf, ways: Iterable[tuple[SettingChange, ...]]) -> Proposal | None:
    return next((found for settings in ways if (found := trials.propose(*settings))), None)


def _ways(trials: WhatIf) -> list[list[SettingChange]]:
    """What could be set otherwise, field by field, the least change first."""
    settings = trials.host.settings
    policy, scope = effective_policy(trials.pod, trials.host.rules)
    own = settings.own_policy
    laxer = list(Policy)[: list(Policy).index(policy)]
    ways = [[SettingChange(OWN_POLICY if own else POLICY, str(policy), str(other)) for other in reversed(laxer)]]
    ways.append(
        [SettingChange(OWN_SCOPE if own else SCOPE, str(scope), str(other)) for other in Scope if other is not scope]
    )
    ways.append([_switched(CLOSEST, on=settings.topology.options.prefer_closest)])
    if settings.cpus.policy == CpuPolicy.STATIC:
        options = settings.cpus.options
        ways += [
            [_switched(CPU_OPTION + name, on=parse_bool(name, options.get(name, "false")))]
            for name in OPTION_STAGES
            if name != _NO_MATTER
        ]
    return ways


def _switched(field: str, *, on: bool) -> SettingChange:
    return SettingChange(field, str(on).lower(), str(not on).lower())
