"""Passes over containers, made at once: whoever moves them in a test never waits for anybody."""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from alignup.agent.pods.cpuset_plan import (
    AppliedCpusets,
    CpusetResult,
    CpusetUpdate,
    ObservedContainers,
    reconcile_cpusets,
)
from alignup.align.bits import CpuSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.errors import EnforceError
from alignup.align.workload import Pod

Passed = tuple[AppliedCpusets, tuple[CpusetResult, ...]]


class Runtime(Protocol):
    """Whoever runs the containers of a test; ``EnforceError`` when it does not do as it is asked."""

    def statuses(self) -> ObservedContainers: ...

    def update(self, container_id: str, cpus: CpuSet) -> None: ...


def passed(
    told: AppliedCpusets, pods: Sequence[Pod], *, ledger: CpuLedger, runtime: Runtime, ready: bool = True
) -> Passed:
    """What comes of one pass."""

    async def move(update: CpusetUpdate) -> str:
        try:
            runtime.update(update.id, update.cpus)
        except EnforceError as error:
            return str(error)
        return ""

    return _done(reconcile_cpusets(told, pods, ledger=ledger, statuses=runtime.statuses(), move=move, ready=ready))


def _done(work: Coroutine[Any, Any, Passed]) -> Passed:
    """What comes of *work* that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        found: Passed = end.value
        return found
    raise AssertionError("it waits for somebody")
