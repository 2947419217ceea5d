"""Remove what pods and containers leave in the runtime, on disk and in the cgroup file system.

Every function may be repeated after an interruption.
"""

import asyncio
from contextlib import suppress

from alignup.agent.pods import cri_config, logs, pod_dirs, volumes
from alignup.agent.pods.pod_state import PodStartError
from alignup.agent.pods.runtime_context import RuntimeContext
from alignup.align.errors import EnforceError
from alignup.align.workload import Pod
from alignup.enforce.cri.types import CriContainer


async def clean_up_pod(context: RuntimeContext, pod: Pod, *, with_logs: bool) -> None:
    """Remove everything of a pod that no longer runs, optionally with its logs."""
    status = await context.cache.refresh_pod(pod.uid)
    for sandbox in status.sandboxes:
        await context.runtime.stop_sandbox(sandbox.id)
        await context.runtime.remove_sandbox(sandbox.id)
    if status.sandboxes:
        await context.cache.refresh_pod(pod.uid)
    await asyncio.to_thread(_remove_files, context, pod, with_logs=with_logs)


def remove_container_files(context: RuntimeContext, pod: Pod, container: CriContainer) -> None:
    """Remove the logs and the termination message of a container."""
    with suppress(PodStartError):  # an invalid name: there are no files
        volumes.remove_termination_message(context.root, pod.uid, container=container.name, attempt=container.attempt)
        logs.remove_logs(context.log_file(pod, container.name, container.attempt))


def _remove_files(context: RuntimeContext, pod: Pod, *, with_logs: bool) -> None:
    with suppress(PodStartError):  # an invalid name: there are no files
        volumes.remove_pod_dir(context.root, pod.uid)
        if with_logs:
            pod_dirs.remove_tree(cri_config.log_directory(context.host_config.log_root, pod))
    if context.cgroups is not None:
        with suppress(EnforceError):  # an invalid name: there is no cgroup
            context.cgroups.remove(pod)
