"""Writes the objects of one host to the API server: only what has changed, by server-side apply.

The generation of a HostState rises with every change, also across restarts of the observer, which continues where the
object in the API server ends. A HostState that does not change is written again every few minutes, with the time, so
that readers notice when the observer has stopped.
"""

from collections.abc import Mapping
from typing import Any

from alignup.documents.codec import encode
from alignup.documents.host_state import HostStateDocument
from alignup.kubernetes.api import NODE_RESOURCE_TOPOLOGIES, ApiClient, Resource
from alignup.kubernetes.api.errors import NotFoundError
from alignup.kubernetes.api.host_states import HEARTBEAT_SECONDS, HOST_STATES, format_time, to_object

MANAGER = "alignup-observer"  #: the field manager of all writes


class Publisher:
    """Writes the HostState and the NodeResourceTopology of node *host*, whose Node object has the uid *uid*."""

    def __init__(self, client: ApiClient, host: str, *, uid: str) -> None:
        self.host = host
        self.sizes: dict[str, int] = {}  #: bytes of the last objects, by resource
        self.missing: set[str] = set()  #: resources that the API server does not have
        self._client = client
        owner = {"apiVersion": "v1", "kind": "Node", "name": host, "uid": uid}
        self._metadata = {"ownerReferences": [owner]} if uid else {}
        self._state: HostStateDocument | None = None  #: as last written, with its generations
        self._topology: Mapping[str, Any] | None = None
        self._generation = 0
        self._written_at = float("-inf")  #: when the HostState was written, by the clock of the client

    async def start(self) -> None:
        """Continue with the generation of an object that exists; :class:`ApiError` if that is not possible."""
        try:
            found = await self._client.find(HOST_STATES.at(self.host))
        except NotFoundError:
            found = None
        self._generation = found.generation if found is not None else 0

    async def publish(self, state: HostStateDocument, topology: Mapping[str, Any] | None) -> bool:
        """Write what differs from the last write; return whether something did. :class:`ApiError` if it failed."""
        written = await self._publish_state(state)
        new_topology = None if topology == self._topology else topology
        if new_topology is not None and await self._apply(NODE_RESOURCE_TOPOLOGIES, new_topology):
            self._topology, written = topology, True
        return written

    async def _publish_state(self, state: HostStateDocument) -> bool:
        before, timing = self._state, self._client.timing
        if before is None or state != before.replace(observed_at="", generation=0, machine_generation=0):
            generation = self._generation + 1
            same = before is not None and (state.machine, state.configuration) == (before.machine, before.configuration)
            machine_generation = before.machine_generation if before is not None and same else generation
            state = state.replace(generation=generation, machine_generation=machine_generation)
        elif timing.clock() >= self._written_at + HEARTBEAT_SECONDS:
            state = before
        else:
            return False
        state = state.replace(observed_at=format_time(timing.time_of_day()))
        if not await self._apply(HOST_STATES, to_object(state)):
            return False
        self._state, self._generation, self._written_at = state, state.generation, timing.clock()
        return True

    async def _apply(self, resource: Resource[Any], document: Mapping[str, Any]) -> bool:
        """Apply one object; return whether the API server has such a resource."""
        whole = {"metadata": self._metadata, **document}
        self.sizes[resource.plural] = len(encode(whole))
        try:
            await self._client.apply(resource.at(self.host), whole, manager=MANAGER)
        except NotFoundError:
            self.missing.add(resource.full_name)
            return False
        self.missing.discard(resource.full_name)
        return True
