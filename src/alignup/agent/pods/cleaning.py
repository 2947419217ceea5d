"""What is left of pods and containers that are gone, taken away: in the runtime, on disk, and from the kernel's groups.

All of it can be done again, whatever was done before: whoever was interrupted begins anew.
"""

import asyncio
from contextlib import suppress

from alignup.agent.pods import logs, plans, trees, volumes
from alignup.agent.pods.failing import StartError
from alignup.agent.pods.tools import Tools
from alignup.align.errors import EnforceError
from alignup.align.workload import Pod
from alignup.enforce.cri.plan import SeenContainer


async def clean(tools: Tools, pod: Pod, *, with_logs: bool) -> None:
    """Remove all there is of a pod of which nothing runs any more, perhaps its logs too."""
    seen = await tools.scene.look_at(pod.uid)
    for sandbox in seen.sandboxes:
        await tools.runtime.stop_sandbox(sandbox.id)
        await tools.runtime.remove_sandbox(sandbox.id)
    if seen.sandboxes:
        await tools.scene.look_at(pod.uid)
    await asyncio.to_thread(_sweep, tools, pod, with_logs=with_logs)


def forget(tools: Tools, pod: Pod, container: SeenContainer) -> None:
    """Remove what a container that is gone printed, and said last."""
    with suppress(StartError):  # what cannot be named was never made
        volumes.forget(tools.root, pod.uid, container=container.name, attempt=container.attempt)
        directory = plans.log_directory(tools.place.log_root, pod)
        logs.forget(directory / plans.log_path(container.name, container.attempt))


def _sweep(tools: Tools, pod: Pod, *, with_logs: bool) -> None:
    """Remove what is on disk; what cannot be named was never made."""
    with suppress(StartError):
        volumes.remove(tools.root, pod.uid)
        if with_logs:
            trees.remove(plans.log_directory(tools.place.log_root, pod))
    if tools.groups is not None:
        with suppress(EnforceError):  # there can be no group for such a name, so there is none
            tools.groups.remove(pod)
