"""Hooks: what is run in a container when it has started, and before it is told to stop."""

import asyncio

from alignup.agent.pods.failing import StartError
from alignup.agent.pods.probes import Execute
from alignup.align.errors import EnforceError
from alignup.kube.spec import Hook

LONGEST = 3600.0  #: seconds; nobody else says when a hook has hung, and the kubelet waits for ever


async def post_start(hook: Hook, execute: Execute, *, container: str) -> None:
    """Run what comes right after the start; ``StartError`` when it fails, and the container has to be stopped."""
    problem = await _problem(hook, execute, seconds=LONGEST)
    if problem:
        raise StartError("PostStartHookError", f'lifecycle hook for Container "{container}" failed - {problem}')


async def pre_stop(hook: Hook, execute: Execute, *, grace: float) -> str:
    """Run what comes before a stop, for *grace* seconds at most; what went wrong, which keeps nobody from stopping."""
    try:
        async with asyncio.timeout(grace):
            return await _problem(hook, execute, seconds=max(grace, 1.0))
    except TimeoutError:
        return f"PreStop hook not completed in grace period of {grace:g} seconds"


async def _problem(hook: Hook, execute: Execute, *, seconds: float) -> str:
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
