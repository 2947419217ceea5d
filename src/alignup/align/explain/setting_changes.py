"""Find other settings of the host that admit a pod.

Candidates are a more permissive policy, the other scope, and options of the topology and CPU managers: each alone, and
in pairs only if none suffices alone. Of the policies the strictest that admits is proposed. The CPU and memory
managers' policies stay, since changing them requires draining the node. If pods choose their policy by annotation, the
pod's annotation changes instead of the host's setting.
"""

from collections.abc import Iterator
from itertools import combinations, product

from alignup.align.admit import effective_policy
from alignup.align.cpus.options import OPTION_STAGES, CpuPolicy
from alignup.align.explain import changes
from alignup.align.explain.changes import Proposal, SettingChange
from alignup.align.explain.what_if import WhatIf
from alignup.align.settings import TOPOLOGY_OPTIONS, TOPOLOGY_SWITCHES, Policy, Scope, parse_bool

_IRRELEVANT = "strict-cpu-reservation"  #: it affects the shared pool only


def setting_changes(what_if: WhatIf) -> Iterator[Proposal]:
    """Proposals of one setting each; if there are none, one proposal of two."""
    candidates = _candidates(what_if)
    found_single = False
    for alternatives in candidates:
        found = what_if.first((setting,) for setting in alternatives)
        found_single = found_single or bool(found)
        yield from found
    if not found_single:
        yield from what_if.first(both for one, other in combinations(candidates, 2) for both in product(one, other))


def _candidates(what_if: WhatIf) -> list[list[SettingChange]]:
    """The alternatives for each field, smallest change first."""
    settings = what_if.host.settings
    policy, scope = effective_policy(what_if.pod, what_if.host.rules)
    if settings.pod_policy_annotations:
        policy_field, scope_field = changes.OWN_POLICY, changes.OWN_SCOPE
    else:
        policy_field, scope_field = changes.POLICY, changes.SCOPE
    laxer = list(Policy)[: list(Policy).index(policy)]
    options = {
        changes.TOPOLOGY_OPTION + name: getattr(settings.topology.options, TOPOLOGY_OPTIONS[name].field)
        for name in TOPOLOGY_SWITCHES
    }
    if settings.cpus.policy == CpuPolicy.STATIC:
        options |= {
            changes.CPU_OPTION + name: parse_bool(name, settings.cpus.options.get(name, "false"))
            for name in OPTION_STAGES
            if name != _IRRELEVANT
        }
    return [
        [SettingChange(policy_field, str(policy), str(other)) for other in reversed(laxer)],
        [SettingChange(scope_field, str(scope), str(other)) for other in Scope if other is not scope],
        *([SettingChange(name, str(on).lower(), str(not on).lower())] for name, on in options.items()),
    ]
