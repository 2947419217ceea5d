"""The guard around the steps of the service: after an error about one pod, gang or workload, all others go on.

A defect, or an object that nobody has thought of, must not stop the service for all. The exception is logged with the
name of its cause and counted, the step is undone as far as the caller can, and it is tried again with back-off.
``Informer.isolated`` is the same for what comes from the API server.
"""

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import structlog

from alignup.align.errors import ParseError
from alignup.kubernetes.api import Timing
from alignup.placement.scheduling.failed_events import LONGEST_RETRY, back_off
from alignup.schedule.metrics import ScheduleMetrics

MAX_FAILURES = 4096  #: that are remembered

_log = structlog.get_logger()


class ServiceStep(StrEnum):
    """What the service does about one pod, gang, workload or node, for metrics."""

    QUEUE = "queue"  #: a gated pod
    PLACE = "place"  #: a gated pod or gang, or keep nodes for it
    RELEASE = "release"
    EXPLAIN = "explain"  #: why pods wait
    ANSWER = "answer"  #: a scheduler's question
    BIND = "bind"
    STEER = "steer"
    GANG = "gang"  #: keep, or give back, the places of a gang
    WAKE = "wake"  #: a rejected pod
    CHECK = "check"  #: a workload of Kueue
    FOLLOW = "follow"  #: a node, or changes of nodes
    PLAN = "plan"  #: carry out a plan, which ends then
    REPORT = "report"  #: an event or an annotation, for users
    TASK = "task"  #: one of the tasks of the service, which is started again


class StepFailure(NamedTuple):
    error: Exception
    seconds: float  #: until the step may be tried again

    @property
    def text(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


def _undo_nothing(_failure: StepFailure) -> None:
    pass


class StepGuard:
    def __init__(self, metrics: ScheduleMetrics, timing: Timing) -> None:
        self._metrics = metrics
        self._timing = timing
        #: step and name → how often it has failed in a row, and when it may be tried again
        self._failures: OrderedDict[tuple[ServiceStep, str], tuple[int, float]] = OrderedDict()
        for step in ServiceStep:
            metrics.failed_steps.labels(step)

    def guarded(
        self,
        step: ServiceStep,
        name: str,
        *,
        undo: Callable[[StepFailure], object] = _undo_nothing,
        passing: tuple[type[Exception], ...] = (),
    ) -> "GuardedStep":
        """Go on after any error in the block but *passing*; then *undo* is called."""
        return GuardedStep(self, step, name, undo, passing)

    def answering(self, name: str) -> "GuardedStep":
        """Let an answer fail for one pod; its scheduler asks again, with a back-off of its own."""
        return self.guarded(ServiceStep.ANSWER, name, passing=(ParseError,))

    def reporting(self, name: str) -> "GuardedStep":
        """Let a report about one object fail; others are written."""
        return self.guarded(ServiceStep.REPORT, name)

    def may_try(self, step: ServiceStep, name: str) -> bool:
        """Return whether a step has not failed, or long enough ago."""
        failures = self._failures.get((step, name))
        return failures is None or self._timing.clock() >= failures[1]

    async def keep_running(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task until it ends or is cancelled; start it again after any error."""
        while True:
            failures: list[StepFailure] = []
            with self.guarded(ServiceStep.TASK, name, undo=failures.append):
                await run()
            if not failures:
                return
            await self._timing.sleep(failures[0].seconds)

    def report(self, *, step: str, name: str, error: Exception, retry: float) -> None:
        """Count and log a step of the scheduling state that has failed."""
        self._metrics.failed_steps.labels(step).inc()
        _log.error("step failed", step=step, name=name, retry=retry, exc_info=error)

    def succeeded(self, step: ServiceStep, name: str) -> None:
        self._failures.pop((step, name), None)

    def failed(self, step: ServiceStep, name: str) -> float:
        """Count a failure; return the seconds until the next try."""
        self._metrics.failed_steps.labels(step).inc()
        now = self._timing.clock()
        count, until = self._failures.pop((step, name), (0, now))
        count = 0 if now >= until + LONGEST_RETRY else count  # a task ends never, so it succeeds by lasting long
        seconds = back_off(count + 1)
        self._failures[step, name] = (count + 1, now + seconds)
        while len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)
        return seconds


@dataclass(frozen=True, slots=True)
class GuardedStep:
    """The context of one try of a step; a class of its own, so that type checkers know that it ends exceptions."""

    _guard: StepGuard
    _step: ServiceStep
    _name: str
    _undo: Callable[[StepFailure], object]
    _passing: tuple[type[Exception], ...]

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        if error is None:
            self._guard.succeeded(self._step, self._name)
        if not isinstance(error, Exception) or isinstance(error, self._passing):
            return False
        failure = StepFailure(error, self._guard.failed(self._step, self._name))
        _log.error("step failed", step=str(self._step), name=self._name, retry=failure.seconds, exc_info=error)
        try:
            self._undo(failure)
        except Exception as problem:  # noqa: BLE001 - it may depend on the same defect
            _log.error("cannot undo a step", step=str(self._step), name=self._name, exc_info=problem)
        return True
