"""The known defects of the kubelet, where they change the decision about a pod.

A host that copies them (``Settings.kubelet_faults``) predicts what a kubelet does; without them it does the safe thing.
docs/kubelet-defects.md describes each.
"""

from collections.abc import Iterator
from dataclasses import replace

from alignup.align import bits
from alignup.align.decision import Decision
from alignup.align.host import Host
from alignup.align.workload import Pod

_ISSUES = "https://github.com/kubernetes/kubernetes/issues"


def describe_defects(host: Host, pod: Pod, decision: Decision) -> Iterator[str]:
    """Yield a sentence for each defect that changes *decision*, which *host* made, with the issue upstream."""
    if not host.settings.kubelet_faults:
        return
    settings = replace(host.settings, kubelet_faults=False)
    safe = Host(host.machine, settings, ledger=host.ledger, others=host.others).decide(pod)
    if (safe.outcome, safe.placements) == (decision.outcome, decision.placements):
        return
    cpus = bits.union(placement.cpus or 0 for placement in decision.placements)
    taken = cpus & ~host.ledger.cpus.available
    if taken:
        listed = bits.show(taken)
        yield (
            f"a defect of the kubelet: CPUs {listed} are not free; it takes a core or socket of which as many CPUs are "
            f"free as an average one has ({_ISSUES}/140498)"
        )
    elif cpus != bits.union(placement.cpus or 0 for placement in safe.placements) and decision.admitted:
        yield (
            "a defect of the kubelet: it distributes the CPUs over other NUMA nodes than it chose, because later "
            f"combinations overwrite its choice ({_ISSUES}/141238)"
        )
    else:
        yield (
            "a defect of the kubelet: it allocates memory on one NUMA node of a group, which the group loses then "
            f"({_ISSUES}/113035)"
        )
