"""Writes the objects of one host to the API server: only what has changed, by server-side apply.

The generation of a HostState rises with every write, also across restarts of the observer, which continues where the
object in the API server ends.
"""

from collections.abc import Mapping
from typing import Any

from alignup.cluster.host_states import HOST_STATES, to_object
from alignup.kubeapi import NODE_RESOURCE_TOPOLOGIES, ApiClient, Resource
from alignup.kubeapi.errors import NotFoundError
from alignup.schema.codec import encode
from alignup.schema.host_state import HostStateDocument

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

    async def start(self) -> None:
        """Continue with the generation of an object that exists; :class:`ApiError` if that is not possible."""
        try:
            found = await self._client.find(HOST_STATES.at(self.host))
        except NotFoundError:
            found = None
        self._generation = found.generation if found is not None else 0

    async def publish(self, state: HostStateDocument, topology: Mapping[str, Any] | None) -> bool:
        """Write what differs from the last write; return whether something did. :class:`ApiError` if it failed."""
        written = False
        before = self._state
        if before is None or state != before.replace(generation=0, machine_generation=0):
            generation = self._generation + 1
            same = before is not None and (state.machine, state.configuration) == (before.machine, before.configuration)
            machine_generation = before.machine_generation if before is not None and same else generation
            numbered = state.replace(generation=generation, machine_generation=machine_generation)
            if await self._apply(HOST_STATES, to_object(numbered)):
                self._state, self._generation, written = numbered, generation, True
        new_topology = None if topology == self._topology else topology
        if new_topology is not None and await self._apply(NODE_RESOURCE_TOPOLOGIES, new_topology):
            self._topology, written = topology, True
        return written

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
