"""How containers are: asked by a command, an HTTP request or a connection, again and again.

Until the startup probe of a container has succeeded once, nothing else is asked. Then liveness, which has to hold or
the container is stopped, and readiness, which comes and goes. One answer alone changes nothing unless the probe says
so: only so many in a row do. Where it could not even be asked (the runtime is away), that counts as no answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from alignup.agent.pods import get
from alignup.agent.pods.failing import StartError
from alignup.agent.pods.get import NoAnswerError
from alignup.agent.pods.life import Health
from alignup.agent.pods.variables import expand_all, static
from alignup.align.errors import CriError, EnforceError
from alignup.enforce.cri.plan import Executed
from alignup.kube.spec import ContainerSpec, Probe

#: Runs a command in the container for so many seconds at most; ``CriError.timed_out`` when it takes longer.
Execute = Callable[[tuple[str, ...], float], Awaitable[Executed]]

LONGEST_OUTPUT = 10 << 10  #: bytes of what a command says
_TRIES = 3  #: where it cannot be asked


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of asking once."""

    well: bool
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A running container that can be asked."""

    container: ContainerSpec
    address: str  #: of its pod
    execute: Execute


async def ask(probe: Probe, target: Target, *, seconds: float | None = None) -> Outcome:
    """Ask once, for *seconds* at most, or as long as *probe* says; ``EnforceError`` when nobody can be asked."""
    limit = probe.timeout if seconds is None else seconds
    if probe.command:
        return await _commanded(probe, target, seconds=limit)
    url = get.url_of(probe, target.address) if probe.http_path is not None else ""
    try:
        async with asyncio.timeout(limit):
            if url:
                return _judged(await get.get(url, probe.http_headers))
            _, writer = await get.connected(probe.host or target.address, probe.port)
            await get.closed(writer)
            return Outcome(well=True)
    except NoAnswerError as error:
        return Outcome(well=False, text=str(error))
    except TimeoutError:
        where = get.joined(probe.host or target.address, probe.port)
        late = f'Get "{url}": context deadline exceeded' if url else f"dial tcp {where}: i/o timeout"
        return Outcome(well=False, text=late)


class Prober:
    """Asks a container how it is, from its start on, and tells whenever that has changed.

    *since* is when it was started, and *now* the time, in the same seconds; *second* is how long a second is, for those
    who cannot wait.
    """

    def __init__(
        self,
        target: Target,
        *,
        tell: Callable[[Health], None],
        since: float,
        now: Callable[[], float],
        second: float = 1.0,
    ) -> None:
        self._target = target
        self._tell = tell
        self._since = since
        self._now = now
        self._second = second
        own = target.container
        self._health = Health(started=own.startup is None, ready=own.startup is None and own.readiness is None)

    async def run(self) -> None:
        """Ask until cancelled, or until nothing more can change."""
        own = self._target.container
        self._tell(self._health)
        if own.startup is not None and not await self._begun(own.startup):
            return
        async with asyncio.TaskGroup() as group:
            if own.liveness is not None:
                group.create_task(self._kept_alive(own.liveness))
            if own.readiness is not None:
                group.create_task(self._kept_ready(own.readiness))

    async def _begun(self, probe: Probe) -> bool:
        """Whether the container has started; else it is sick."""
        async with aclosing(self._verdicts(probe)) as verdicts:
            outcome = await anext(verdicts)
        if outcome.well:
            self._change(started=True, ready=self._target.container.readiness is None)
        else:
            self._change(sick=f"Startup probe failed: {outcome.text}", grace=probe.grace)
        return outcome.well

    async def _kept_alive(self, probe: Probe) -> None:
        async with aclosing(self._verdicts(probe)) as verdicts:
            async for outcome in verdicts:
                if not outcome.well:
                    self._change(sick=f"Liveness probe failed: {outcome.text}", grace=probe.grace)
                    return

    async def _kept_ready(self, probe: Probe) -> None:
        async with aclosing(self._verdicts(probe)) as verdicts:
            async for outcome in verdicts:
                self._change(ready=outcome.well)

    async def _verdicts(self, probe: Probe) -> AsyncGenerator[Outcome, None]:
        """What a probe says whenever it has said so often enough."""
        delay, period = probe.delay * self._second, probe.period * self._second
        await self._until(self._since + delay, at_most=delay)
        before: Outcome | None = None
        row = 0
        while True:
            begun = self._now()
            outcome = await self._asked(probe)
            if outcome is not None:
                row = row + 1 if before is not None and before.well is outcome.well else 1
                before = outcome
                if row >= (probe.successes if outcome.well else probe.failures):
                    yield outcome
            await self._until(begun + period, at_most=period)

    async def _until(self, moment: float, *, at_most: float) -> None:
        """Wait; a clock that is set back keeps nobody waiting for longer than that."""
        await asyncio.sleep(min(max(0.0, moment - self._now()), at_most))

    async def _asked(self, probe: Probe) -> Outcome | None:
        """What came of it; ``None`` when nobody could be asked."""
        for _ in range(_TRIES):
            try:
                return await ask(probe, self._target, seconds=probe.timeout * self._second)
            except EnforceError:
                continue
        return None

    def _change(
        self,
        *,
        started: bool | None = None,
        ready: bool | None = None,
        sick: str | None = None,
        grace: float | None = None,
    ) -> None:
        before = self._health
        self._health = replace(
            before,
            started=before.started if started is None else started,
            ready=before.ready if ready is None else ready,
            sick=before.sick if sick is None else sick,
            grace=before.grace if grace is None else grace,
        )
        if self._health != before:
            self._tell(self._health)


async def _commanded(probe: Probe, target: Target, *, seconds: float) -> Outcome:
    try:
        # A command knows of the variables only what is written in the manifest.
        command = expand_all(probe.command, static(target.container))
    except StartError as error:
        return Outcome(well=False, text=str(error))
    try:
        done = await target.execute(command, seconds)
    except CriError as error:
        if not error.timed_out:
            raise
        return Outcome(well=False, text=f'command "{" ".join(command)}" timed out')
    output = (done.output + done.errors)[:LONGEST_OUTPUT].decode("utf-8", "replace")
    return Outcome(well=done.exit_code == 0, text=output)


def _judged(status: int) -> Outcome:
    if 200 <= status < 400:
        return Outcome(well=True)
    return Outcome(well=False, text=f"HTTP probe failed with statuscode: {status}")
