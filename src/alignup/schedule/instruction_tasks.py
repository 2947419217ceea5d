"""Tasks that carry out instructions of the scheduling state; an error comes back as an event."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from alignup.placement.scheduling.events import Event, SteeringFailed, StepFailed
from alignup.placement.scheduling.instructions import (
    EvictPlannedPod,
    Instruction,
    ReadPlanFacts,
    ReadPodClaims,
    WriteBinding,
    WritePlan,
    WriteRelease,
    WriteSteering,
)
from alignup.schedule.step_guard import ServiceStep
from alignup.tasks import cancel_tasks


def failure_event(instruction: Instruction, error: Exception) -> Event | None:
    """Return what tells the scheduling state that nothing will come of an instruction; ``None``: it expects nothing."""
    match instruction:
        case WriteRelease(pod):
            return StepFailed(pod.uid, ServiceStep.RELEASE, error)
        case WriteBinding(request, pod) | ReadPodClaims(request, pod):
            return StepFailed(pod.uid, ServiceStep.BIND, error, request)
        case WriteSteering(node, pod) if pod is not None:
            return SteeringFailed(node, pod.uid, str(error))
        case ReadPlanFacts(plan) | WritePlan(plan) | EvictPlannedPod(plan):
            return StepFailed(plan, ServiceStep.PLAN, error)
    return None


class InstructionTasks:
    def __init__(self, schedule: Callable[[Event], object]) -> None:
        self._schedule = schedule
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], uid: str, step: str, request: int = 0) -> None:
        """Start a task about a pod, or about the binding that was asked for with *request*."""

        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - whatever it is, all others go on
                self._schedule(StepFailed(uid, step, error, request))

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        await cancel_tasks(self._tasks)
