"""The known defects of the kubelet, where they change the decision about a pod.

A host that copies them (``Settings.kubelet_faults``) predicts what a kubelet does; without them it does the safe thing.
``DEFECTS`` is the table of docs/kubelet-defects.md, which a test compares.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from alignup.align import bits
from alignup.align.cpus.selection import ENDLESS_REASON
from alignup.align.decision import Decision
from alignup.align.host import Host
from alignup.align.workload import Pod

_ISSUES = "https://github.com/kubernetes/kubernetes/issues"


class Defect(NamedTuple):
    title: str
    sentence: str  #: what the kubelet does
    issue: int  #: upstream
    status: str  #: of the issue
    last: int | None = None  #: the last minor release that has it; ``None``: not fixed
    first: int = 33  #: the first known minor release that has it

    @property
    def link(self) -> str:
        return f"{_ISSUES}/{self.issue}"


CPUS_NOT_FREE = Defect(
    "CPUs that are not free",
    "it takes a core or socket of which as many CPUs are free as an average one has",
    140498,
    "cores are fixed in 1.38, sockets are not",
)
OTHER_NODES = Defect(
    "CPUs on other NUMA nodes than chosen",
    "it distributes the CPUs over other NUMA nodes than it chose, because later combinations overwrite its choice",
    141238,
    "open",
)
ENDLESS_LOOP = Defect(
    "An endless loop",
    "it does not return from the selection of CPUs, because NUMA nodes have enough free CPUs, but not in whole cores",
    140730,
    "fixed in 1.38",
    last=37,
)
SPLIT_GROUP = Defect(
    "Memory of a part of a group",
    "it allocates memory on one NUMA node of a group, which the group loses then",
    113035,
    "closed, still reproduces",
)
DEFECTS = (CPUS_NOT_FREE, OTHER_NODES, ENDLESS_LOOP, SPLIT_GROUP)


def describe_defects(host: Host, pod: Pod, decision: Decision) -> Iterator[str]:
    """Yield a sentence for each defect that changes *decision*, which *host* made, with the issue upstream."""
    if not host.settings.kubelet_faults:
        return
    settings = replace(host.settings, kubelet_faults=False)
    safe = Host(host.machine, settings, ledger=host.ledger, others=host.others).decide(pod)
    if (safe.outcome, safe.placements) == (decision.outcome, decision.placements):
        return
    given, expected = (bits.union(placement.cpus or 0 for placement in each.placements) for each in (decision, safe))
    taken = bits.show(given & ~host.ledger.cpus.available)
    if decision.rejection is not None and decision.rejection.reason == ENDLESS_REASON:
        defect, detail = ENDLESS_LOOP, ""
    elif taken:
        defect, detail = CPUS_NOT_FREE, f"CPUs {taken} are not free; "
    elif given != expected and decision.admitted:
        defect, detail = OTHER_NODES, ""
    else:
        defect, detail = SPLIT_GROUP, ""
    yield f"a defect of the kubelet: {detail}{defect.sentence} ({defect.link})"
