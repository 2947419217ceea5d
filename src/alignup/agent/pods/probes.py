"""Probes and lifecycle hooks of running containers.

Until the startup probe of a container has succeeded, the other probes do not run. Then a failed liveness probe stops
the container, and the readiness probe changes whether it is ready. A result takes effect when it repeats as often as
the probe's thresholds say. A probe that cannot run, because the runtime is unavailable, has no result.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, replace

from alignup.agent.pods import http_probe
from alignup.agent.pods.environment import expand_all
from alignup.agent.pods.http_probe import ProbeRequestError
from alignup.agent.pods.pod_state import PodStartError, ProbeStatus
from alignup.align.errors import CriError, EnforceError
from alignup.enforce.cri.types import ExecResult
from alignup.kube.podspec.types import ContainerSpec, LifecycleHook, Probe

#: Run a command in a container within a number of seconds; ``CriError.timed_out`` if it takes longer.
ExecSync = Callable[[tuple[str, ...], float], Awaitable[ExecResult]]

MAX_HOOK_SECONDS = 3600.0  #: limit for a postStart hook that hangs; the kubelet has none
MAX_OUTPUT_BYTES = 10 << 10  #: of a command's output
_ATTEMPTS = 3  #: for a probe that cannot run
_STARTUP, _LIVENESS, _READINESS = "Startup", "Liveness", "Readiness"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    healthy: bool
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """A running container."""

    container: ContainerSpec
    address: str  #: of its pod
    execute: ExecSync


async def run_probe(probe: Probe, target: ProbeTarget, *, seconds: float | None = None) -> ProbeResult:
    """Run *probe* once, with its own timeout or *seconds*; ``EnforceError`` if it cannot run."""
    limit = probe.timeout if seconds is None else seconds
    if probe.command:
        return await _exec(probe, target, seconds=limit)
    host = probe.host or target.address
    url = http_probe.probe_url(probe, target.address) if probe.http_path is not None else ""
    try:
        async with asyncio.timeout(limit):
            if url:
                status = await http_probe.get_status(url, probe.http_headers)
                healthy = 200 <= status < 400
                return ProbeResult(healthy, "" if healthy else f"HTTP probe failed with statuscode: {status}")
            _, writer = await http_probe.open_connection(host, probe.port)
            await http_probe.close_connection(writer)
            return ProbeResult(healthy=True)
    except ProbeRequestError as error:
        return ProbeResult(healthy=False, text=str(error))
    except TimeoutError:
        where = http_probe.join_host_port(host, probe.port)
        late = f'Get "{url}": context deadline exceeded' if url else f"dial tcp {where}: i/o timeout"
        return ProbeResult(healthy=False, text=late)


@dataclass
class Prober:
    """Probe one container from its start, and call *report* on each change of its status."""

    target: ProbeTarget
    _: KW_ONLY
    report: Callable[[ProbeStatus], None]
    since: float  #: its start time, on the same clock as *now*
    now: Callable[[], float]
    second: float = 1.0  #: the length of a second, for tests

    def __post_init__(self) -> None:
        spec = self.target.container
        self._status = ProbeStatus(started=spec.startup is None, ready=spec.startup is None and spec.readiness is None)

    async def run(self) -> None:
        """Probe until cancelled, or until the status can no longer change."""
        spec = self.target.container
        self.report(self._status)
        if spec.startup is not None:
            await self._watch(spec.startup, _STARTUP)
        if self._status.failure:
            return
        async with asyncio.TaskGroup() as group:
            for probe, kind in ((spec.liveness, _LIVENESS), (spec.readiness, _READINESS)):
                if probe is not None:
                    group.create_task(self._watch(probe, kind))

    async def _watch(self, probe: Probe, kind: str) -> None:
        """Run a probe until a result is final; results count if they repeat as often as the thresholds require."""
        delay, period = probe.delay * self.second, probe.period * self.second
        await self._sleep_until(self.since + delay, at_most=delay)
        previous: ProbeResult | None = None
        repeats = 0
        while True:
            started_at = self.now()
            result = await self._run_with_retries(probe)
            if result is not None:
                repeats = repeats + 1 if previous is not None and previous.healthy is result.healthy else 1
                previous = result
                threshold = probe.successes if result.healthy else probe.failures
                if repeats >= threshold and self._is_final(result, probe, kind):
                    return
            await self._sleep_until(started_at + period, at_most=period)

    def _is_final(self, result: ProbeResult, probe: Probe, kind: str) -> bool:
        """Update the status; return whether the probe need not run again."""
        before = self._status
        if kind == _READINESS:
            self._status = replace(before, ready=result.healthy)
        elif not result.healthy:
            self._status = replace(before, failure=f"{kind} probe failed: {result.text}", grace=probe.grace)
        elif kind == _STARTUP:
            self._status = replace(before, started=True, ready=self.target.container.readiness is None)
        if self._status != before:
            self.report(self._status)
        return kind == _STARTUP or (kind == _LIVENESS and not result.healthy)

    async def _sleep_until(self, moment: float, *, at_most: float) -> None:
        """Sleep at most *at_most* seconds, even if the clock is set back."""
        await asyncio.sleep(min(max(0.0, moment - self.now()), at_most))

    async def _run_with_retries(self, probe: Probe) -> ProbeResult | None:
        """``None``: the probe could not run."""
        for _ in range(_ATTEMPTS):
            try:
                return await run_probe(probe, self.target, seconds=probe.timeout * self.second)
            except EnforceError:
                continue
        return None


async def run_post_start(hook: LifecycleHook, execute: ExecSync, *, container: str) -> None:
    """Run a postStart hook; ``PodStartError`` if it fails, and then the container must be stopped."""
    problem = await _run_hook(hook, execute, seconds=MAX_HOOK_SECONDS)
    if problem:
        raise PodStartError("PostStartHookError", f'lifecycle hook for Container "{container}" failed - {problem}')


async def run_pre_stop(hook: LifecycleHook, execute: ExecSync, *, grace: float) -> str:
    """Run a preStop hook for at most *grace* seconds; return the problem, which does not prevent the stop."""
    try:
        async with asyncio.timeout(grace):
            return await _run_hook(hook, execute, seconds=max(grace, 1.0))
    except TimeoutError:
        return f"PreStop hook not completed in grace period of {grace:g} seconds"


async def _run_hook(hook: LifecycleHook, execute: ExecSync, *, seconds: float) -> str:
    """Run a hook; return why it failed, or an empty string."""
    if hook.sleep is not None:
        await asyncio.sleep(min(hook.sleep, seconds))
        return ""
    try:
        result = await execute(hook.command, seconds)
    except EnforceError as error:
        return f"error: {error}"
    if result.exit_code == 0:
        return ""
    output = (result.output + result.errors).decode("utf-8", "replace").strip()
    return f"error: command exited with {result.exit_code}, message: {output[:1024]!r}"


async def _exec(probe: Probe, target: ProbeTarget, *, seconds: float) -> ProbeResult:
    literals = {variable.name: variable.value for variable in target.container.env}
    try:
        command = expand_all(probe.command, literals)
        result = await target.execute(command, seconds)
    except PodStartError as error:
        return ProbeResult(healthy=False, text=str(error))
    except CriError as error:
        if not error.timed_out:
            raise
        return ProbeResult(healthy=False, text=f'command "{" ".join(command)}" timed out')
    output = (result.output + result.errors)[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")
    return ProbeResult(healthy=result.exit_code == 0, text=output)
