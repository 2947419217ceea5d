"""Run the ``postStart`` and ``preStop`` hooks of containers."""

import asyncio

from alignup.agent.pods.pod_state import PodStartError
from alignup.agent.pods.probes import ExecSync
from alignup.align.errors import EnforceError
from alignup.kube.podspec.types import LifecycleHook

MAX_HOOK_SECONDS = 3600.0  #: limit for a postStart hook that hangs; the kubelet has none


async def run_post_start(hook: LifecycleHook, execute: ExecSync, *, container: str) -> None:
    """Run a postStart hook; ``PodStartError`` if it fails, and then the container must be stopped."""
    problem = await _run(hook, execute, seconds=MAX_HOOK_SECONDS)
    if problem:
        raise PodStartError("PostStartHookError", f'lifecycle hook for Container "{container}" failed - {problem}')


async def run_pre_stop(hook: LifecycleHook, execute: ExecSync, *, grace: float) -> str:
    """Run a preStop hook for at most *grace* seconds; return the problem, which does not prevent the stop."""
    try:
        async with asyncio.timeout(grace):
            return await _run(hook, execute, seconds=max(grace, 1.0))
    except TimeoutError:
        return f"PreStop hook not completed in grace period of {grace:g} seconds"


async def _run(hook: LifecycleHook, execute: ExecSync, *, seconds: float) -> str:
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
