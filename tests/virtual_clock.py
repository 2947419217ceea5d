"""An event loop whose clock skips the time in which nothing happens.

Servers and clients of a test share its loop and talk over loopback, so what one sends the other has at once. When no
descriptor is ready, no callback is due and no thread of the loop works, only time can change anything: the clock is set
to the next timer. A wait of a minute costs nothing, and no time passes while a busy machine works.

Nothing tells the loop that another process works. So once a test has started a process, its time is real to its end.
"""

import asyncio
import selectors
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")

#: Seconds for others, such as threads that a library started, before time is skipped.
GRACE = 0.0005


#: Raised by the modules ``subprocess`` and ``os`` when they start a process; see ``sys.addaudithook``.
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})


class ProcessWatch:
    """Whether the present test has started a process."""

    started = False

    def audit(self, event: str, _arguments: object) -> None:
        if event in STARTS:
            self.started = True


PROCESSES = ProcessWatch()
sys.addaudithook(PROCESSES.audit)


class _SkippingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0  #: seconds
        self.threads = 0  #: that work for the loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or self.threads or PROCESSES.started:
            return super().select(timeout)
        ready = super().select(min(timeout, GRACE))
        if not ready:
            self.skipped += timeout
        return ready


class VirtualClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return super().time() + self._skipping.skipped

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Arguments], _Result], *args: *_Arguments
    ) -> asyncio.Future[_Result]:
        future = super().run_in_executor(executor, func, *args)
        self._skipping.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: object) -> None:
        self._skipping.threads -= 1


#: What ``anyio_backend`` returns for tests on this clock.
VIRTUAL_CLOCK: tuple[str, dict[str, Any]] = ("asyncio", {"loop_factory": VirtualClockLoop})
