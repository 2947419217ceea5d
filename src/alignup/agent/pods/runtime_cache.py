"""What the runtime has: every sandbox and container of this agent, as it was last looked at.

Lists are cheap and are asked for every second; all there is to know of a container is asked for when its state has
changed, since one that has ended stays as it is. While everything is looked at, a pod may be looked at by itself: what
was asked for later counts, whenever the answer came.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from alignup.agent.pods.cri_config import AGENT_LABEL, POD_UID
from alignup.agent.pods.pod_state import PodStatus
from alignup.align.errors import CriError
from alignup.enforce.cri.types import ContainerState, CriContainer, CriSandbox


class RuntimeLister(Protocol):
    """As much of a runtime as looking takes."""

    async def sandboxes(self, labels: Mapping[str, str] | None = None) -> tuple[CriSandbox, ...]:
        """All sandboxes with these labels."""
        ...

    async def sandbox(self, id_: str) -> CriSandbox:
        """One, with its addresses."""
        ...

    async def containers(self, labels: Mapping[str, str] | None = None) -> tuple[CriContainer, ...]:
        """All containers with these labels."""
        ...

    async def container(self, id_: str) -> CriContainer:
        """One, with all there is to know."""
        ...


@dataclass
class RuntimeCache:
    """All that *runtime* has of the agent called *agent*."""

    runtime: RuntimeLister
    agent: str
    others: int = 0  #: sandboxes that are not ours
    _pods: dict[str, PodStatus] = field(default_factory=dict)  #: by uid
    _containers: dict[str, CriContainer] = field(default_factory=dict)  #: by id, with all there is to know
    _sandboxes: dict[str, CriSandbox] = field(default_factory=dict)
    _looks: int = 0  #: how many there were
    _looked: dict[str, int] = field(default_factory=dict)  #: uid → the look that its pod was seen at by itself

    def of(self, uid: str) -> PodStatus:
        """What there is of a pod."""
        return self._pods.get(uid, PodStatus())

    def pods(self) -> Mapping[str, PodStatus]:
        """What there is, by uid."""
        return self._pods

    @property
    def uids(self) -> frozenset[str]:
        """The pods of which there is something."""
        return frozenset(self._pods)

    async def look(self) -> frozenset[str]:
        """Look at everything; the pods of which something has changed.

        ``CriError`` when the runtime does not answer.
        """
        began = self._next()
        sandboxes, containers = await asyncio.gather(self.runtime.sandboxes(), self.runtime.containers())
        own = [one for one in sandboxes if one.labels.get(AGENT_LABEL) == self.agent]
        self.others = len(sandboxes) - len(own)
        known = {one.id for one in own}
        found = await self._gathered(own, [one for one in containers if one.sandbox in known])
        for uid in [uid for uid, look in self._looked.items() if look > began]:
            found.pop(uid, None)
            if uid in self._pods:
                found[uid] = self._pods[uid]
        self._looked = {uid: look for uid, look in self._looked.items() if look > began}
        self._containers = {one.id: one for seen in found.values() for one in seen.containers}
        self._sandboxes = {one.id: one for seen in found.values() for one in seen.sandboxes}
        before, self._pods = self._pods, found
        return frozenset(uid for uid in before.keys() | found.keys() if before.get(uid) != found.get(uid))

    async def refresh_pod(self, uid: str) -> PodStatus:
        """Look at one pod."""
        began = self._next()
        labels = {POD_UID: uid, AGENT_LABEL: self.agent}
        sandboxes, containers = await asyncio.gather(
            self.runtime.sandboxes(labels), self.runtime.containers({POD_UID: uid})
        )
        known = {one.id for one in sandboxes}
        found = await self._gathered(sandboxes, [one for one in containers if one.sandbox in known])
        seen = found.get(uid, PodStatus())
        self._looked[uid] = began
        self._containers |= {one.id: one for one in seen.containers}
        self._sandboxes |= {one.id: one for one in seen.sandboxes}
        if uid in found:
            self._pods[uid] = seen
        else:
            self._pods.pop(uid, None)
        return seen

    def _next(self) -> int:
        self._looks += 1
        return self._looks

    async def _gathered(
        self, sandboxes: Iterable[CriSandbox], containers: Iterable[CriContainer]
    ) -> dict[str, PodStatus]:
        """What was listed, in full, by pod."""
        boxes = [replace(one, ips=known.ips) for one in sandboxes if (known := self._sandboxes.get(one.id))]
        inside = [whole for one in containers if (whole := self._known(one))]
        seen = {one.id for one in boxes} | {one.id for one in inside}
        new_boxes = await asyncio.gather(*(self._shown_sandbox(one.id) for one in sandboxes if one.id not in seen))
        news = await asyncio.gather(*(self._shown(one.id) for one in containers if one.id not in seen))
        by_pod: dict[str, tuple[list[CriSandbox], list[CriContainer]]] = {}
        owners = {}
        for box in sorted((*boxes, *filter(None, new_boxes)), key=_age):
            owners[box.id] = by_pod.setdefault(box.uid, ([], []))
            owners[box.id][0].append(box)
        for container in sorted((*inside, *filter(None, news)), key=_age):
            if container.sandbox in owners:
                owners[container.sandbox][1].append(container)
        return {
            uid: PodStatus(sandboxes=tuple(own), containers=tuple(contained))
            for uid, (own, contained) in by_pod.items()
        }

    def _known(self, listed: CriContainer) -> CriContainer | None:
        """A container in full, where all there is to know of it is known; ``None``: it has to be asked for."""
        known = self._containers.get(listed.id)
        if known is None or known.state is not listed.state or known.state is ContainerState.UNKNOWN:
            return None
        return known

    async def _shown_sandbox(self, id_: str) -> CriSandbox | None:
        """A sandbox with its addresses, which it keeps; ``None`` when it is gone."""
        try:
            return await self.runtime.sandbox(id_)
        except CriError as error:
            if error.not_found:
                return None
            raise

    async def _shown(self, id_: str) -> CriContainer | None:
        """A container in full; ``None`` when it is gone."""
        try:
            return await self.runtime.container(id_)
        except CriError as error:
            if error.not_found:
                return None
            raise


def _age(one: CriSandbox | CriContainer) -> tuple[int, float]:
    return one.attempt, one.created
