"""CPU hints and allocations in tests."""

from typing import cast

from alignup.align.bits import CpuSet, NodeSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.provider import CpuHints, CpuProvider
from alignup.align.hint import Hint
from alignup.align.workload import Container, Pod
from alignup.align.workload.names import CPU


def allocate(
    cpus: CpuProvider, ledger: CpuLedger, wanted: Pod, each: Container | None, affinity: NodeSet | None = None
) -> tuple[CpuLedger, CpuSet]:
    """The ledger after an allocation, and the CPUs that were allocated."""
    ledger = cpus.allocate(ledger, wanted, each, affinity=Hint(affinity, preferred=False))
    taken = ledger.pod_held.get(wanted.uid) if each is None else ledger.holds(wanted.uid, each.name)
    return ledger, taken or 0


def cpu_hints(cpus: CpuProvider, ledger: CpuLedger, pod: Pod, container: Container | None = None) -> CpuHints | None:
    """Return the hints for a container or a whole pod; ``None``: no preference."""
    hints = cpus.hints(ledger, pod, container)
    return None if hints is None else cast("CpuHints", hints[CPU])
