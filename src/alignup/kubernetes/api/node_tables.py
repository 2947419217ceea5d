"""The pods and ResourceSlices of one node, as the API server has them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from alignup import atomic_files
from alignup.align.errors import PodError, StateError
from alignup.kubernetes.api.claim_resources import RESOURCE_SLICES
from alignup.kubernetes.api.client import ApiClient, EventType
from alignup.kubernetes.api.errors import NotFoundError
from alignup.kubernetes.api.informer import Change, Informer
from alignup.kubernetes.api.known_pods import KnownPod, known_pod, kubelet_uid
from alignup.kubernetes.api.objects import ApiNode
from alignup.kubernetes.api.resource import PODS, Query
from alignup.kubernetes.manifests.claims import ResourceSlice, slices_from
from alignup.tasks import cancel_tasks

if TYPE_CHECKING:
    from alignup.align.claims.resource_claims import Slice
    from alignup.kubernetes.api.objects import ApiPod

_START_SECONDS = 10  #: after which a program starts without what the API server has not sent
_BOOT_ID = "proc/sys/kernel/random/boot_id"
_BOOT_ID_BYTES = 4096  #: the kernel allocates a buffer as large as what is asked for
_LONGEST_RETRY = 600.0  #: seconds between attempts to read slices, which a cluster may not have at all

_log = structlog.get_logger()


class KnownSlices(NamedTuple):
    slices: "tuple[Slice, ...] | None" = None  #: ``None``: unknown
    gap: str = ""  #: why, if that is worth a note


class PodTable:
    """The pods of one host, as the API server has them."""

    def __init__(self, client: ApiClient, host: str) -> None:
        self._informer: Informer[ApiPod] = Informer(client, PODS, Query(fields=f"spec.nodeName={host}"))
        self._read: dict[str, tuple[str, KnownPod]] = {}  #: by uid in the API server: resource version and pod
        self._pods: Mapping[str, KnownPod] | None = None  #: until a pod changes

    def known(self) -> Mapping[str, KnownPod] | None:
        """Return the pods by the uid that the kubelet uses; ``None`` if they have not been listed."""
        if self._informer.synced and self._pods is None:
            self._pods = self._read_pods()
        return self._pods if self._informer.synced else None

    def _read_pods(self) -> Mapping[str, KnownPod]:
        """Read the pods that have changed."""
        pods: dict[str, tuple[str, KnownPod]] = {}
        uids = {pod.metadata.uid for pod in self._informer.objects.values()}
        for pod in self._informer.objects.values():
            uid, version = pod.metadata.uid, pod.metadata.resource_version
            entry = self._read.get(uid)
            try:
                pods[uid] = (
                    entry if entry and entry[0] == version else (version, known_pod(pod, uid=kubelet_uid(pod, uids)))
                )
            except PodError as error:
                _log.warning("pod left out", pod=pod.metadata.full_name, uid=pod.metadata.uid, problem=str(error))
        self._read = pods
        return {pod.pod.uid: pod for _, pod in pods.values()}

    @property
    def problems(self) -> tuple[str, ...]:
        return (str(self._informer.error),) if self._informer.error else ()

    @asynccontextmanager
    async def following(self, notify: Callable[[], None]) -> AsyncIterator[None]:
        """Follow the API server inside the context, and call *notify* after each change that matters to the node."""
        pods_before = self.known()

        def changed(_change: object) -> None:
            nonlocal pods_before
            self._pods = None
            pods = self.known()
            if pods is None or pods != pods_before:  # most changes of a status are none
                pods_before = pods
                notify()

        self._informer.subscribe(changed)
        async with _running(self._informer, self._informer.wait_synced()):
            yield


class SliceTable:
    """The ResourceSlices of one host, as the API server has them."""

    def __init__(self, client: ApiClient, host: str) -> None:
        query = Query(fields=f"spec.nodeName={host}")
        self._informer = Informer(client, RESOURCE_SLICES, query, longest_retry=_LONGEST_RETRY)
        self._read: dict[str, tuple[Slice, ...]] = {}  #: by name
        self._all_slices: tuple[Slice, ...] = ()

    def known(self) -> KnownSlices:
        """Return the slices; a cluster without this resource has no gap."""
        error = self._informer.error
        if self._informer.synced:
            return KnownSlices(self._all_slices)
        if error is None or isinstance(error, NotFoundError):
            return KnownSlices()
        return KnownSlices(gap=f"the ResourceSlices of this node cannot be read: {error}")

    @asynccontextmanager
    async def following(self, notify: Callable[[], None]) -> AsyncIterator[None]:
        """Follow the API server inside the context, and call *notify* after each change."""

        def changed(change: Change[ResourceSlice]) -> None:
            name = change.object.metadata.name
            self._read.pop(name, None)
            try:
                if change.type is not EventType.DELETED:
                    self._read[name] = slices_from(change.object)
            finally:  # an unreadable slice is logged, and does not count
                all_slices = tuple(slice_ for slices in self._read.values() for slice_ in slices)
                if all_slices != self._all_slices:
                    self._all_slices = all_slices
                    notify()

        self._informer.subscribe(changed)
        self._informer.subscribe_lists(notify)
        async with _running(self._informer, self._informer.wait_tried()):
            yield


@asynccontextmanager
async def _running(informer: Informer[Any], ready: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run an informer inside the context, which begins when it is *ready*, or after some seconds without it."""
    task = asyncio.ensure_future(informer.run())
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(ready, _START_SECONDS)
        yield
    finally:
        await cancel_tasks([task])


def check_boot_id(node: ApiNode, host_root: Path) -> None:
    """``StateError`` if the Node object describes another machine, or this machine before its last boot."""
    text = atomic_files.read(host_root / _BOOT_ID, limit=_BOOT_ID_BYTES)
    expected_id, actual_id = node.status.node_info.boot_id, text.decode("ascii", "replace").strip() if text else ""
    if expected_id and actual_id and expected_id != actual_id:
        raise StateError(
            f"node {node.metadata.name} is another machine, or its kubelet has not started since the last boot: "
            f"its boot id is {expected_id}, that of this machine is {actual_id}"
        )
