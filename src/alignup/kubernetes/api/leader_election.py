"""Leader election: one of several processes is chosen by a Lease, as Kubernetes' own components do it.

Clocks of different machines are not compared: a lease has expired when it was not renewed for its duration, measured
here from when its last change was seen.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import structlog

from alignup.kubernetes.api.client import ApiClient
from alignup.kubernetes.api.errors import ApiError, ConflictError
from alignup.kubernetes.api.objects import Lease, LeaseSpec
from alignup.kubernetes.api.resource import LEASES, ObjectRef
from alignup.tasks import cancel_tasks

_log = structlog.get_logger()


class LeaderElection:
    """One candidate; *identity* must be different for every process."""

    def __init__(self, client: ApiClient, *, name: str, namespace: str, identity: str) -> None:
        self.identity = identity
        self.leader = ""  #: the holder of the lease as last seen; empty: none
        self.leading = False  #: whether this process is the leader
        self._client = client
        self._ref: ObjectRef[Lease] = LEASES.at(name, namespace=namespace)
        self._seen: LeaseSpec | None = None
        self._seen_at = 0.0

    async def run(self, lead: Callable[[], Awaitable[object]]) -> None:
        """Wait to become the leader, then run *lead* until it returns; on loss cancel it and wait again.

        The lease is given up when this returns, raises or is cancelled.
        """
        timing = self._client.timing
        while True:
            while not await self._try_to_acquire():
                await timing.sleep(2 * timing.spread(timing.poll))
            _log.info("leading", identity=self.identity, lease=str(self._ref))
            self.leading = True
            try:
                if await self._lead(lead):
                    return
            finally:
                self.leading = False
                await self._release()
            _log.warning("lease lost", identity=self.identity, lease=str(self._ref))

    async def _try_to_acquire(self) -> bool:
        try:
            return await self._acquire()
        except ApiError as error:
            _log.warning("cannot take the lease", lease=str(self._ref), problem=str(error))
            return False

    async def _lead(self, lead: Callable[[], Awaitable[object]]) -> bool:
        """Run *lead*; return whether it returned while this process was the leader."""
        work = asyncio.ensure_future(lead())
        renewal = asyncio.create_task(self._renew_until_lost())
        try:
            await asyncio.wait({work, renewal}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return True
            renewal.result()
            return False
        finally:
            await cancel_tasks((work, renewal))

    async def _renew_until_lost(self) -> None:
        timing = self._client.timing
        renewed_at = timing.clock()
        while True:
            await timing.sleep(timing.poll)
            start = timing.clock()
            seconds_left = renewed_at + timing.renew - start
            if seconds_left <= 0:
                return
            try:
                async with asyncio.timeout(seconds_left):
                    if not await self._acquire():
                        return
                renewed_at = start
            except (ApiError, TimeoutError) as error:
                _log.warning("cannot renew the lease", lease=str(self._ref), problem=str(error) or "no response")

    async def _acquire(self) -> bool:
        """Take or renew the lease; ``False`` if another process holds it."""
        lease = await self._client.find(self._ref)
        try:
            if lease is None:
                metadata = {"name": self._ref.name, "namespace": self._ref.namespace}
                document = {"metadata": metadata, "spec": self._spec(None)}
                self._see(await self._client.create(LEASES, document, namespace=self._ref.namespace))
            else:
                self._see(lease)
                expiry = self._seen_at + (lease.spec.lease_duration_seconds or self._client.timing.lease)
                if self.leader not in {"", self.identity} and self._client.timing.clock() < expiry:
                    return False
                self._see(await self._write(lease, self._spec(lease)))
        except ConflictError:  # another process was faster
            return False
        return True

    async def _write(self, lease: Lease, spec: dict[str, object]) -> Lease:
        """Change the lease, unless another process has changed it since it was read."""
        metadata = {"resourceVersion": lease.metadata.resource_version}
        return await self._client.patch(self._ref, {"metadata": metadata, "spec": spec})

    def _see(self, lease: Lease) -> None:
        self.leader = lease.spec.holder_identity or ""
        if lease.spec != self._seen:
            self._seen = lease.spec
            self._seen_at = self._client.timing.clock()

    def _spec(self, lease: Lease | None) -> dict[str, object]:
        timing = self._client.timing
        now = datetime.fromtimestamp(timing.time_of_day(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, object] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(timing.lease),
            "renewTime": now,
        }
        if lease is None or lease.spec.holder_identity != self.identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = 0 if lease is None else (lease.spec.lease_transitions or 0) + 1
        return spec

    async def _release(self) -> None:
        """Let another process lead at once, if the API server can be reached."""
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(self._client.timing.poll):
                lease = await self._client.find(self._ref)
                if lease is not None and lease.spec.holder_identity == self.identity:
                    self._see(await self._write(lease, {"holderIdentity": None, "leaseDurationSeconds": 1}))
