"""The known defects of the kubelet that change decisions.

A host that copies them (``Settings.kubelet_faults``) predicts what a kubelet does; without them it does the safe thing.
``DEFECTS`` and ``OTHER_DEFECTS`` are the tables of docs/kubelet-defects.md, which a test compares.
"""

from typing import NamedTuple

ISSUES = "https://github.com/kubernetes/kubernetes/issues"


class Defect(NamedTuple):
    title: str
    sentence: str  #: what the kubelet does
    issue: int | None  #: upstream; ``None``: none was found
    status: str = ""  #: of the issue; empty: fixed
    last: int | None = None  #: the last minor release that has it; ``None``: not fixed
    first: int = 33  #: the first known minor release that has it

    @property
    def fix(self) -> str:
        """Say which release has the fix."""
        return f"fixed in 1.{self.last + 1}" if self.last else "not fixed"

    @property
    def releases(self) -> str:
        return f"1.{self.first} to 1.{self.last}" if self.last else f"1.{self.first} and later"

    @property
    def upstream(self) -> str:
        """Return the issue with its status."""
        issue = f"[#{self.issue}]({ISSUES}/{self.issue}): " if self.issue else ""
        return f"{issue}{self.status or self.fix}"


CPUS_NOT_FREE = Defect(
    "CPUs that are not free",
    "it takes a core or socket of which as many CPUs are free as an average one has",
    140498,
    last=37,
)
OTHER_NODES = Defect(
    "CPUs on other NUMA nodes than chosen",
    "it distributes the CPUs over other NUMA nodes than it chose, because later combinations overwrite its choice",
    141238,
    last=37,
)
ENDLESS_LOOP = Defect(
    "An endless loop",
    "it does not return from the selection of CPUs, because NUMA nodes have enough free CPUs, but not in whole cores",
    140730,
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

#: Those that no decision shows: they need a restart, two pods at once, or a rare machine. The page describes them.
OTHER_DEFECTS = (
    Defect("Restarts of pods with pod-level CPUs", "", 140989, last=37, first=36),
    Defect("Restarts of pods with pod-level memory", "", 140906, last=37, first=36),
    Defect("CPUs of a rejected pod with pod-level resources", "", 141041, last=37, first=36),
    Defect("Pod-level memory without that of containers", "", 141993, "open", first=36),
    Defect("One device for two pods", "", 137534, last=37),
    Defect("Devices of a failed preferred allocation", "", 130172, "open"),
    Defect("Gauges that drift", "", 141262, last=37),
    Defect("Memory that changes at a reboot", "", 131253, "open; an option is planned for 1.38"),
    Defect("No start without shared CPUs", "", None, "none found"),
    Defect("Distances on machines with gaps", "", None, "none found"),
    Defect("Devices that are gone", "", None, "none found", first=34),
    Defect("Huge pages of a missing size", "", None, "none found"),
    Defect("Stalls on many NUMA nodes", "", 135541, "open"),
    Defect("Restarts of pods with init containers", "", 123971, "open"),
    Defect("Caches with half used cores", "", 137315, "open"),
)
