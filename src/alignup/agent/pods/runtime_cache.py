"""A cache of the sandboxes and containers that this agent has in the runtime.

Lists are cheap and are requested every second. The full status of a container is requested only when its state has
changed, because that of an exited container is final. A single pod may be refreshed while a full refresh is in
progress: the result of the later request wins, whichever arrives first.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from alignup.agent.pods.cri_config import AGENT_LABEL, POD_UID
from alignup.agent.pods.pod_state import PodStatus
from alignup.align.errors import CriError
from alignup.enforce.cri.client import RuntimeClient
from alignup.enforce.cri.types import ContainerState, CriContainer, CriSandbox

_Status = TypeVar("_Status")


@dataclass
class RuntimeCache:
    """What *runtime* has of the agent with id *agent*."""

    runtime: RuntimeClient
    agent: str
    foreign_sandboxes: int = 0
    _pods: dict[str, PodStatus] = field(default_factory=dict)  #: by uid
    _containers: dict[str, CriContainer] = field(default_factory=dict)  #: by id, with full status
    _sandboxes: dict[str, CriSandbox] = field(default_factory=dict)
    _requests: int = 0
    _refreshed: dict[str, int] = field(default_factory=dict)  #: uid → number of the last request for this pod alone

    def of(self, uid: str) -> PodStatus:
        return self._pods.get(uid, PodStatus())

    def pods(self) -> Mapping[str, PodStatus]:
        """The status of every pod, by uid."""
        return self._pods

    @property
    def pod_uids(self) -> frozenset[str]:
        return frozenset(self._pods)

    async def refresh(self) -> frozenset[str]:
        """Refresh everything; return the uids of pods that have changed. ``CriError`` if the runtime fails."""
        request = self._next_request()
        sandboxes, containers = await asyncio.gather(self.runtime.sandboxes(), self.runtime.containers())
        own = [one for one in sandboxes if one.labels.get(AGENT_LABEL) == self.agent]
        self.foreign_sandboxes = len(sandboxes) - len(own)
        found = await self._complete(own, containers)
        for uid in [uid for uid, number in self._refreshed.items() if number > request]:
            found.pop(uid, None)
            if uid in self._pods:
                found[uid] = self._pods[uid]
        self._refreshed = {uid: number for uid, number in self._refreshed.items() if number > request}
        self._containers = {one.id: one for status in found.values() for one in status.containers}
        self._sandboxes = {one.id: one for status in found.values() for one in status.sandboxes}
        before, self._pods = self._pods, found
        return frozenset(uid for uid in before.keys() | found.keys() if before.get(uid) != found.get(uid))

    async def refresh_pod(self, uid: str) -> PodStatus:
        request = self._next_request()
        sandboxes, containers = await asyncio.gather(
            self.runtime.sandboxes({POD_UID: uid, AGENT_LABEL: self.agent}), self.runtime.containers({POD_UID: uid})
        )
        found = await self._complete(sandboxes, containers)
        status = found.get(uid, PodStatus())
        self._refreshed[uid] = request
        self._containers |= {one.id: one for one in status.containers}
        self._sandboxes |= {one.id: one for one in status.sandboxes}
        if uid in found:
            self._pods[uid] = status
        else:
            self._pods.pop(uid, None)
        return status

    def _next_request(self) -> int:
        self._requests += 1
        return self._requests

    async def _complete(
        self, sandboxes: Iterable[CriSandbox], containers: Iterable[CriContainer]
    ) -> dict[str, PodStatus]:
        """Group what was listed by pod, with full status; containers in other sandboxes are left out."""
        ids = {one.id for one in sandboxes}
        containers = [one for one in containers if one.sandbox in ids]
        known_sandboxes = [replace(one, ips=known.ips) for one in sandboxes if (known := self._sandboxes.get(one.id))]
        known_containers = [full for one in containers if (full := self._cached(one))]
        cached = {one.id for one in known_sandboxes} | {one.id for one in known_containers}
        new_sandboxes = await asyncio.gather(
            *(_if_found(self.runtime.sandbox(one.id)) for one in sandboxes if one.id not in cached)
        )
        new_containers = await asyncio.gather(
            *(_if_found(self.runtime.container(one.id)) for one in containers if one.id not in cached)
        )
        by_pod: dict[str, tuple[list[CriSandbox], list[CriContainer]]] = {}
        owners = {}
        for sandbox in sorted((*known_sandboxes, *filter(None, new_sandboxes)), key=_age):
            owners[sandbox.id] = by_pod.setdefault(sandbox.uid, ([], []))
            owners[sandbox.id][0].append(sandbox)
        for container in sorted((*known_containers, *filter(None, new_containers)), key=_age):
            if container.sandbox in owners:
                owners[container.sandbox][1].append(container)
        return {uid: PodStatus(sandboxes=tuple(own), containers=tuple(inside)) for uid, (own, inside) in by_pod.items()}

    def _cached(self, listed: CriContainer) -> CriContainer | None:
        """The full status of a container; ``None``: it must be requested."""
        known = self._containers.get(listed.id)
        if known is None or known.state is not listed.state or known.state is ContainerState.UNKNOWN:
            return None
        return known


async def _if_found(request: Awaitable[_Status]) -> _Status | None:
    """The result of a status request; ``None`` if the object was removed meanwhile."""
    try:
        return await request
    except CriError as error:
        if error.not_found:
            return None
        raise


def _age(one: CriSandbox | CriContainer) -> tuple[int, float]:
    return one.attempt, one.created
