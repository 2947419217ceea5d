"""The known defects of the kubelet that change decisions.

A host that copies them (``Settings.kubelet_faults``) predicts what a kubelet does; without them it does the safe thing.
``DEFECTS`` is the table of docs/kubelet-defects.md, which a test compares.
"""

from typing import NamedTuple

ISSUES = "https://github.com/kubernetes/kubernetes/issues"


class Defect(NamedTuple):
    title: str
    sentence: str  #: what the kubelet does
    issue: int | None  #: upstream; ``None``: none was found
    status: str  #: of the issue
    last: int | None = None  #: the last minor release that has it; ``None``: not fixed
    first: int = 33  #: the first known minor release that has it


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
CLAIMED_HINTS = Defect(
    "Hints for devices of a claim",
    "it aligns the pod with devices of a plugin that have the name of the requested resource, although a ResourceClaim "
    "serves the request",
    None,
    "none found",
    first=35,
)
LATE_PLUGIN = Defect(
    "Admitted pods that are rejected",
    "when it restarts, it admits pods again whose containers do not run yet, and rejects those whose device plugin has "
    "not registered by then",
    125579,
    "open",
)
TAINT_UNTIL_READY = "before a restart or a reboot, taint the node until its device plugins have registered"
DEFECTS = (CPUS_NOT_FREE, OTHER_NODES, ENDLESS_LOOP, SPLIT_GROUP, CLAIMED_HINTS, LATE_PLUGIN)
