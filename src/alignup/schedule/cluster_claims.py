"""The claims of a cluster, followed, or read once.

A cluster may not have these resources, or give no right to read them. Then nothing is known of claims, and no pod is
kept from a node for their sake.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from alignup.kubernetes.api import ApiClient, Change, EventType, Informer, Resource
from alignup.kubernetes.api.claim_resources import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from alignup.kubernetes.api.errors import ApiError
from alignup.kubernetes.api.objects import ApiNode
from alignup.kubernetes.manifests.claims import ResourceClaim, ResourceSlice
from alignup.schedule.known_claims import ClaimChange, KnownClaims, object_label
from alignup.schedule.selector_results import SLICE_SECONDS

_BETWEEN_CHANGES = 1.0  #: seconds between notifications that selectors were computed

_log = structlog.get_logger()


class ClusterClaims(KnownClaims):
    """What is known of claims now; *nodes* are the nodes of the cluster."""

    def __init__(
        self,
        client: ApiClient,
        nodes: Informer[ApiNode],
        on_change: Callable[[ClaimChange], object] = lambda _change: None,
    ) -> None:
        self._pending = asyncio.Event()
        super().__init__(nodes.get, on_change, pended=self._pending.set)
        self._nodes = nodes
        self._sleep = client.timing.sleep
        self._device_classes = Informer(client, DEVICE_CLASSES)
        self._slices = Informer(
            client, RESOURCE_SLICES, trim=lambda api_object: ResourceSlice(metadata=api_object.metadata)
        )
        self._claims = Informer(
            client, RESOURCE_CLAIMS, trim=lambda api_object: ResourceClaim(metadata=api_object.metadata)
        )
        self._templates = Informer(client, RESOURCE_CLAIM_TEMPLATES)
        self._informers: tuple[Informer[Any], ...] = (
            self._device_classes,
            self._slices,
            self._claims,
            self._templates,
        )

    async def run(self) -> None:
        """Follow the API server until cancelled.

        Where the group is missing, one informer says so, and tries again; the others begin when it succeeds.
        """
        self._nodes.subscribe(self.node_changed)
        self._device_classes.subscribe(self.class_changed)
        self._slices.subscribe(self.slice_changed)
        self._claims.subscribe(self.claim_changed)
        self._templates.subscribe(self.template_changed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._device_classes.run())
            tasks.create_task(self._compute_selectors())
            await self._device_classes.wait_synced()
            for informer in self._informers[1:]:
                tasks.create_task(informer.run())

    async def _compute_selectors(self) -> None:
        """Compute slice by slice what decisions did not wait for, and have these made again."""
        while True:
            await self._pending.wait()
            self._pending.clear()
            while not self.selectors.compute():
                await self._sleep(SLICE_SECONDS)
            self._changed(ClaimChange(None))
            await self._sleep(_BETWEEN_CHANGES)

    def _report(self, event: str, **details: object) -> None:
        _log.warning(event, **details)

    async def wait_settled(self) -> None:
        """Wait until everything is listed, or until it is clear that something cannot be listed."""
        for informer in self._informers:
            await informer.wait_tried()
            if self.problem:
                return

    @property
    def known(self) -> bool:
        """Whether all objects are followed."""
        return all(informer.synced and informer.error is None for informer in self._informers)

    @property
    def problem(self) -> str:
        """Why claims are not known; empty: they are, or they are still being listed."""
        for informer in self._informers:
            if informer.error is not None:
                return f"{informer.resource.full_name} are not followed: {informer.error}"
        return ""

    @property
    def unreadable(self) -> dict[str, str]:
        """Objects that cannot be read, and why."""
        return super().unreadable | {
            object_label(informer.resource.kind, name): problem
            for informer in self._informers
            for name, problem in informer.unreadable.items()
        }


async def read_claims(client: ApiClient, find_node: Callable[[str], ApiNode | None]) -> KnownClaims:
    """List all objects once; what cannot be listed is not known."""
    claims = ListedClaims(find_node)
    await claims.read(client)
    return claims


class ListedClaims(KnownClaims):
    """Claims that were read once."""

    async def read(self, client: ApiClient) -> None:
        try:
            await self._read(client, DEVICE_CLASSES, self.class_changed)
            await self._read(client, RESOURCE_SLICES, self.slice_changed)
            await self._read(client, RESOURCE_CLAIMS, self.claim_changed)
            await self._read(client, RESOURCE_CLAIM_TEMPLATES, self.template_changed)
        except ApiError as error:
            self._problem = str(error)

    async def _read(self, client: ApiClient, resource: Resource[Any], add: Callable[[Change[Any]], object]) -> None:
        object_list = await client.list(resource)
        for item in object_list.items:
            add(Change(EventType.ADDED, item))
        for name, problem in object_list.unreadable.items():
            self._wrong[object_label(resource.kind, name)] = problem
