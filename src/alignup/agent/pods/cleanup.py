"""What is left of pods and containers that are gone, taken away: in the runtime, on disk, and from the kernel's groups.

All of it can be done again, whatever was done before: whoever was interrupted begins anew.
"""

import asyncio
from contextlib import suppress

from alignup.agent.pods import cri_config, logs, pod_dirs, volumes
from alignup.agent.pods.errors import PodStartError
from alignup.agent.pods.runtime_context import RuntimeContext
from alignup.align.errors import EnforceError
from alignup.align.workload import Pod
from alignup.enforce.cri.types import CriContainer


async def clean_up_pod(tools: RuntimeContext, pod: Pod, *, with_logs: bool) -> None:
    """Remove all there is of a pod of which nothing runs any more, perhaps its logs too."""
    seen = await tools.cache.refresh_pod(pod.uid)
    for sandbox in seen.sandboxes:
        await tools.runtime.stop_sandbox(sandbox.id)
        await tools.runtime.remove_sandbox(sandbox.id)
    if seen.sandboxes:
        await tools.cache.refresh_pod(pod.uid)
    await asyncio.to_thread(_sweep, tools, pod, with_logs=with_logs)


def remove_container_files(tools: RuntimeContext, pod: Pod, container: CriContainer) -> None:
    """Remove what a container that is gone printed, and said last."""
    with suppress(PodStartError):  # what cannot be named was never made
        volumes.remove_termination_message(tools.root, pod.uid, container=container.name, attempt=container.attempt)
        directory = cri_config.log_directory(tools.place.log_root, pod)
        logs.remove_logs(directory / cri_config.log_path(container.name, container.attempt))


def _sweep(tools: RuntimeContext, pod: Pod, *, with_logs: bool) -> None:
    """Remove what is on disk; what cannot be named was never made."""
    with suppress(PodStartError):
        volumes.remove_pod_dir(tools.root, pod.uid)
        if with_logs:
            pod_dirs.remove_tree(cri_config.log_directory(tools.place.log_root, pod))
    if tools.groups is not None:
        with suppress(EnforceError):  # there can be no group for such a name, so there is none
            tools.groups.remove(pod)
