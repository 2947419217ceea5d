"""Hooks: what is run in a container when it has started, and before it is told to stop."""

import asyncio

from alignup.agent.pods.errors import PodStartError
from alignup.agent.pods.probes import ExecSync
from alignup.align.errors import EnforceError
from alignup.kube.podspec.types import LifecycleHook

MAX_HOOK_SECONDS = 3600.0  #: seconds; nobody else says when a hook has hung, and the kubelet waits for ever


async def run_post_start(hook: LifecycleHook, execute: ExecSync, *, container: str) -> None:
    """Run what comes right after the start; ``PodStartError`` when it fails, and the container has to be stopped."""
    problem = await _problem(hook, execute, seconds=MAX_HOOK_SECONDS)
    if problem:
        raise PodStartError("PostStartHookError", f'lifecycle hook for Container "{container}" failed - {problem}')


async def run_pre_stop(hook: LifecycleHook, execute: ExecSync, *, grace: float) -> str:
    """Run what comes before a stop, for *grace* seconds at most; what went wrong, which keeps nobody from stopping."""
    try:
        async with asyncio.timeout(grace):
            return await _problem(hook, execute, seconds=max(grace, 1.0))
    except TimeoutError:
        return f"PreStop hook not completed in grace period of {grace:g} seconds"


async def _problem(hook: LifecycleHook, execute: ExecSync, *, seconds: float) -> str:
    """Why a hook failed; empty when it did not."""
    if hook.sleep is not None:
        await asyncio.sleep(min(hook.sleep, seconds))
        return ""
    try:
        done = await execute(hook.command, seconds)
    except EnforceError as error:
        return f"error: {error}"
    if done.exit_code == 0:
        return ""
    output = (done.output + done.errors).decode("utf-8", "replace").strip()
    return f"error: command exited with {done.exit_code}, message: {output[:1024]!r}"
