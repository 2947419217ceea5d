"""How containers are: asked by a command, an HTTP request or a connection, again and again.

Until the startup probe of a container has succeeded once, nothing else is asked. Then liveness, which has to hold or
the container is stopped, and readiness, which comes and goes. One answer alone changes nothing unless the probe says
so: only so many in a row do. Where it could not even be asked (the runtime is away), that counts as no answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from alignup.agent.pods import http_probe
from alignup.agent.pods.environment import expand_all, literal_values
from alignup.agent.pods.errors import PodStartError
from alignup.agent.pods.http_probe import ProbeRequestError
from alignup.agent.pods.pod_state import ProbeStatus
from alignup.align.errors import CriError, EnforceError
from alignup.enforce.cri.types import ExecResult
from alignup.kube.podspec.types import ContainerSpec, Probe

#: Runs a command in the container for so many seconds at most; ``CriError.timed_out`` when it takes longer.
ExecSync = Callable[[tuple[str, ...], float], Awaitable[ExecResult]]

MAX_OUTPUT_BYTES = 10 << 10  #: bytes of what a command says
_TRIES = 3  #: where it cannot be asked


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What came of asking once."""

    healthy: bool
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """A running container that can be asked."""

    container: ContainerSpec
    address: str  #: of its pod
    execute: ExecSync


async def run_probe(probe: Probe, target: ProbeTarget, *, seconds: float | None = None) -> ProbeResult:
    """Ask once, for *seconds* at most, or as long as *probe* says; ``EnforceError`` when nobody can be asked."""
    limit = probe.timeout if seconds is None else seconds
    if probe.command:
        return await _commanded(probe, target, seconds=limit)
    url = http_probe.probe_url(probe, target.address) if probe.http_path is not None else ""
    try:
        async with asyncio.timeout(limit):
            if url:
                return _judged(await http_probe.get_status(url, probe.http_headers))
            _, writer = await http_probe.open_connection(probe.host or target.address, probe.port)
            await http_probe.close_connection(writer)
            return ProbeResult(healthy=True)
    except ProbeRequestError as error:
        return ProbeResult(healthy=False, text=str(error))
    except TimeoutError:
        where = http_probe.join_host_port(probe.host or target.address, probe.port)
        late = f'Get "{url}": context deadline exceeded' if url else f"dial tcp {where}: i/o timeout"
        return ProbeResult(healthy=False, text=late)


class Prober:
    """Asks a container how it is, from its start on, and tells whenever that has changed.

    *since* is when it was started, and *now* the time, in the same seconds; *second* is how long a second is, for those
    who cannot wait.
    """

    def __init__(
        self,
        target: ProbeTarget,
        *,
        tell: Callable[[ProbeStatus], None],
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
        self._health = ProbeStatus(started=own.startup is None, ready=own.startup is None and own.readiness is None)

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
        if outcome.healthy:
            self._change(started=True, ready=self._target.container.readiness is None)
        else:
            self._change(sick=f"Startup probe failed: {outcome.text}", grace=probe.grace)
        return outcome.healthy

    async def _kept_alive(self, probe: Probe) -> None:
        async with aclosing(self._verdicts(probe)) as verdicts:
            async for outcome in verdicts:
                if not outcome.healthy:
                    self._change(sick=f"Liveness probe failed: {outcome.text}", grace=probe.grace)
                    return

    async def _kept_ready(self, probe: Probe) -> None:
        async with aclosing(self._verdicts(probe)) as verdicts:
            async for outcome in verdicts:
                self._change(ready=outcome.healthy)

    async def _verdicts(self, probe: Probe) -> AsyncGenerator[ProbeResult, None]:
        """What a probe says whenever it has said so often enough."""
        delay, period = probe.delay * self._second, probe.period * self._second
        await self._until(self._since + delay, at_most=delay)
        before: ProbeResult | None = None
        row = 0
        while True:
            begun = self._now()
            outcome = await self._asked(probe)
            if outcome is not None:
                row = row + 1 if before is not None and before.healthy is outcome.healthy else 1
                before = outcome
                if row >= (probe.successes if outcome.healthy else probe.failures):
                    yield outcome
            await self._until(begun + period, at_most=period)

    async def _until(self, moment: float, *, at_most: float) -> None:
        """Wait; a clock that is set back keeps nobody waiting for longer than that."""
        await asyncio.sleep(min(max(0.0, moment - self._now()), at_most))

    async def _asked(self, probe: Probe) -> ProbeResult | None:
        """What came of it; ``None`` when nobody could be asked."""
        for _ in range(_TRIES):
            try:
                return await run_probe(probe, self._target, seconds=probe.timeout * self._second)
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
            failure=before.failure if sick is None else sick,
            grace=before.grace if grace is None else grace,
        )
        if self._health != before:
            self._tell(self._health)


async def _commanded(probe: Probe, target: ProbeTarget, *, seconds: float) -> ProbeResult:
    try:
        # A command knows of the variables only what is written in the manifest.
        command = expand_all(probe.command, literal_values(target.container))
    except PodStartError as error:
        return ProbeResult(healthy=False, text=str(error))
    try:
        done = await target.execute(command, seconds)
    except CriError as error:
        if not error.timed_out:
            raise
        return ProbeResult(healthy=False, text=f'command "{" ".join(command)}" timed out')
    output = (done.output + done.errors)[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")
    return ProbeResult(healthy=done.exit_code == 0, text=output)


def _judged(status: int) -> ProbeResult:
    if 200 <= status < 400:
        return ProbeResult(healthy=True)
    return ProbeResult(healthy=False, text=f"HTTP probe failed with statuscode: {status}")
