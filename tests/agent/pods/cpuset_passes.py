"""Run a reconciliation pass synchronously, with a runtime that never waits."""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from alignup.agent.pods.cpusets import (
    AppliedCpusets,
    CpusetResult,
    CpusetUpdate,
    ObservedContainers,
    containers_of,
    reconcile_cpusets,
)
from alignup.align.bits import CpuSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.errors import EnforceError
from alignup.align.workload import Pod

PassResult = tuple[AppliedCpusets, tuple[CpusetResult, ...]]


class Runtime(Protocol):
    """A runtime for tests; ``EnforceError`` if an update fails."""

    def statuses(self) -> ObservedContainers: ...

    def update(self, container_id: str, cpus: CpuSet) -> None: ...


def reconcile_now(
    applied: AppliedCpusets, pods: Sequence[Pod], *, ledger: CpuLedger, runtime: Runtime, ready: bool = True
) -> PassResult:
    """Other pods are forgotten first, unless *pods* may be incomplete because not every source of pods is *ready*."""

    async def move(update: CpusetUpdate) -> str:
        try:
            runtime.update(update.id, update.cpus)
        except EnforceError as error:
            return str(error)
        return ""

    known = applied.only(containers_of(pods)) if ready else applied
    return _run(reconcile_cpusets(known, pods, ledger=ledger, statuses=runtime.statuses(), move=move))


def _run(work: Coroutine[Any, Any, PassResult]) -> PassResult:
    try:
        work.send(None)
    except StopIteration as end:
        result: PassResult = end.value
        return result
    raise AssertionError("the pass waits")
