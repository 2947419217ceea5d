"""Names of pods and nodes of a cluster, for the completion of arguments."""

import asyncio
from pathlib import Path

import click

from alignup.kubernetes.api import NODES, PODS, ApiClient, Timing, find_access


def read_names(ctx: click.Context, *, pods: bool, seconds: float) -> list[str]:
    """Return the names of the pods of the namespace, or of the nodes, if the cluster answers within *seconds*."""
    return asyncio.run(asyncio.wait_for(_read_names(ctx, pods=pods, seconds=seconds), seconds))


async def _read_names(ctx: click.Context, *, pods: bool, seconds: float) -> list[str]:
    config = ctx.params.get("kubeconfig")
    access = find_access(Path(config) if config else None, context=ctx.params.get("context") or "")
    namespace = ctx.params.get("namespace") or access.namespace
    timing = Timing(attempts=1, connect=seconds, response=seconds, credentials=seconds)
    async with ApiClient(access, timing=timing) as client:
        if not pods:
            return [node.metadata.name for node in (await client.list(NODES)).items]
        api_pods = (await client.list(PODS)).items
        return [pod.metadata.name for pod in api_pods if pod.metadata.namespace == namespace]
