"""Writes a release to the API server, and finds out whether it was carried out when the answer does not tell."""

import asyncio
import logging
from typing import NamedTuple

from alignup.gate.affinity import pinned_node, release_patch
from alignup.gate.releases import Release, ReleaseOutcome
from alignup.kubernetes.api import PODS, ApiClient
from alignup.kubernetes.api.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    ServerFailureError,
    TooManyRequestsError,
    UnreachableError,
)
from alignup.kubernetes.api.objects import ApiPod

_log = logging.getLogger(__name__)


class WrittenRelease(NamedTuple):
    failure: ReleaseOutcome | None = None  #: ``None``: the pod is released
    current: ApiPod | None = None  #: the pod as it is now, if it can be tried again
    error: str = ""  #: the API server's answer


class ReleaseWriter:
    """Writes at most *parallel* releases at the same time."""

    def __init__(self, client: ApiClient, *, parallel: int) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(parallel)

    async def acquire(self) -> None:
        """Wait until another release may be written, and keep its slot."""
        await self._slots.acquire()

    def release(self) -> None:
        """Give back the slot: there is nothing to write."""
        self._slots.release()

    async def write(self, release: Release) -> WrittenRelease:
        """Write a release, and give back the slot that was kept for it."""
        try:
            return await self._write(release)
        finally:
            self._slots.release()

    async def _write(self, release: Release) -> WrittenRelease:
        try:
            await self._client.patch(PODS.of(release.pod), release_patch(release.pod, release.node))
        except (ConflictError, NotFoundError):
            return await self._find_out(release)
        except (UnreachableError, ServerFailureError, TooManyRequestsError) as error:
            _log.warning("pod=%s problem=%s", release.pod_name, error)
            await self._client.timing.sleep(self._client.timing.spread(self._client.timing.retry))
            return await self._find_out(release)
        except ApiError as error:
            return WrittenRelease(ReleaseOutcome.REFUSED, release.pod, str(error))
        return WrittenRelease()

    async def _find_out(self, release: Release) -> WrittenRelease:
        """Read the pod until the API server answers: nothing may be assumed before."""
        timing = self._client.timing
        while True:
            try:
                current = await self._client.find(PODS.of(release.pod))
            except ApiError as error:
                _log.warning("pod=%s problem=%s", release.pod_name, error)
                await timing.sleep(timing.spread(timing.longest_retry))
                continue
            if current is None or current.metadata.uid != release.uid:
                return WrittenRelease(ReleaseOutcome.DELETED)
            if pinned_node(current) == release.node:
                return WrittenRelease()
            return WrittenRelease(ReleaseOutcome.CHANGED, current)

    async def evict(self, pod: ApiPod) -> None:
        try:
            await self._client.evict(PODS.of(pod))
        except ApiError as error:
            _log.warning("pod=%s problem=cannot be replaced: %s", pod.metadata.full_name, error)
