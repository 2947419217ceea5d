"""The definitions of custom resources that a real API server needs."""

import asyncio
from pathlib import Path
from typing import Any

import yaml

from alignup.kubernetes.api import ApiClient, Resource
from alignup.kubernetes.api.errors import ApiError
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.objects import PartialObject

DEPLOYED = Path(__file__).parents[1] / "deploy" / "kubernetes"
DEFINITIONS = Resource(
    type=PartialObject,
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    group="apiextensions.k8s.io",
)
_SECONDS = 60.0  #: until a new resource is served, which takes milliseconds


async def define_host_states(client: ApiClient) -> None:
    """Create the definition of HostState unless it exists, and wait until the resource is served."""
    if await client.find(DEFINITIONS.at(HOST_STATES.full_name)) is None:
        await client.create(DEFINITIONS, yaml.safe_load((DEPLOYED / "crds" / "hoststates.yaml").read_text("utf-8")))
    await wait_served(client, HOST_STATES)


async def wait_served(client: ApiClient, resource: Resource[Any]) -> None:
    """Wait until a resource that was just defined is served."""
    async with asyncio.timeout(_SECONDS):
        while True:
            try:
                await client.list(resource)
            except ApiError:
                await asyncio.sleep(0.1)
            else:
                return
