"""The node observer as a program: its access to the API server and the kubelet, its loop, and its HTTP endpoints."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog

from alignup import atomic_files
from alignup.align.errors import PodError, StateError
from alignup.align.machine import Device
from alignup.kubernetes.api import (
    NODES,
    PODS,
    Access,
    ApiClient,
    Change,
    EventType,
    Informer,
    Query,
    Timing,
)
from alignup.kubernetes.api.claim_resources import RESOURCE_SLICES
from alignup.kubernetes.api.errors import NotFoundError
from alignup.kubernetes.api.known_pods import KnownPod, known_pod, kubelet_uid
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.kubernetes.manifests.claims import ResourceSlice, slices_from
from alignup.kubernetes.plugins.pod_resources import PodResourcesClient, pod_resources_client
from alignup.observe.app import ObserverMetrics, observer_app
from alignup.observe.kubelet_reader import KnownSlices, KubeletPaths, KubeletReader
from alignup.observe.marker_steering import (
    MarkerHoldings,
    Markers,
    Steering,
    SteeringMetrics,
    SteeringTiming,
    make_markers,
)
from alignup.observe.observer import Observer, ObserverTiming, Publisher
from alignup.observe.published_objects import FingerprintMethod
from alignup.web.asgi_server import ServerLimits, run_until_signal, serve_app
from alignup.web.sockets import tcp_socket

if TYPE_CHECKING:
    from alignup.align.claims.resource_claims import Slice

KUBELET_PORT = 10250
_START_SECONDS = 10  #: after which the observer starts without what the API server has not sent
_LONGEST_RETRY = 600.0  #: seconds between attempts to read slices, which a cluster may not have at all
_KUBELET_CERTIFICATE = "pki/kubelet.crt"  #: which the kubelet signs itself if nobody else does

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveOptions:
    host: str  #: the name of the Kubernetes node
    paths: KubeletPaths = field(default_factory=KubeletPaths)
    configz: bool = True  #: whether to ask the kubelet for its live configuration
    kubelet_address: str = ""  #: HOST:PORT; empty: the node's internal address
    listen: tuple[str, int] | None = None  #: of the HTTP endpoints
    names: tuple[str, ...] = ()  #: by which clients call them, beside those of this machine
    method: FingerprintMethod = FingerprintMethod.EXCLUSIVE
    once: bool = False  #: whether to stop after the first write
    steer: SteeringTiming | None = None  #: for offering markers, and carrying out instructions; ``None``: do not
    timing: ObserverTiming = field(default_factory=ObserverTiming)


async def observe(access: Access, options: ObserveOptions) -> tuple[str, ...]:
    """Run the observer until SIGTERM or SIGINT, or once; return what went wrong in the latter case.

    ``StateError`` if this is not the machine of the node, or the kubelet's files are those of another machine.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(access))
        node = await client.get(NODES.at(options.host))
        pods, slices = PodTable(client, options.host), SliceTable(client, options.host)
        pod_resources = await stack.enter_async_context(pod_resources_client(options.paths.pod_resources))
        reader = KubeletReader(
            options.paths,
            pod_resources=pod_resources,
            pods=pods.known,
            slices=slices.known,
            configz=await stack.enter_async_context(_configz(access, options, node)) if options.configz else None,
        )
        check_boot_id(node, reader.boot_id())
        publisher = Publisher(client, options.host, uid=node.metadata.uid)
        metrics = ObserverMetrics(options.host)
        observer = Observer(reader, publisher, metrics, timing=options.timing, method=options.method)
        steering = None
        if options.steer is not None:
            steering = _steering(
                client, options, reader=reader, pod_resources=pod_resources, pods=pods, metrics=metrics
            )

        def pods_changed() -> None:
            observer.notify()
            if steering is not None:
                steering.notify()

        await stack.enter_async_context(pods.following(pods_changed))
        await stack.enter_async_context(slices.following(observer.notify))
        await observer.check_machine()
        await publisher.start()
        if options.listen is not None:
            app = observer_app(metrics, alive=observer.is_alive, problems=lambda: (*observer.problems, *pods.problems))
            listener = stack.enter_context(tcp_socket(options.listen[1], options.listen[0]))
            limits = ServerLimits(names=(*options.names, options.listen[0]))
            await stack.enter_async_context(serve_app(app, listener, stopping=asyncio.Event(), limits=limits))
        _log.info("observer started", host=options.host)
        if options.once:
            return await observer.check_once()
        if steering is not None:
            await stack.enter_async_context(steering.running())
        await run_until_signal(observer.run())
    return ()


def _steering(  # noqa: PLR0913 - the parts that it shares with the observer
    client: ApiClient,
    options: ObserveOptions,
    *,
    reader: KubeletReader,
    pod_resources: PodResourcesClient,
    pods: "PodTable",
    metrics: ObserverMetrics,
) -> Steering:
    steering_metrics = SteeringMetrics(metrics.registry)

    def markers() -> tuple[Device, ...]:
        known = reader.machine()
        return make_markers(*known) if known else ()

    directory = options.paths.plugin_socket.parent
    reader.markers = Markers(directory, make=markers, metrics=steering_metrics)
    return Steering(
        host=options.host,
        client=client,
        markers=reader.markers,
        pod_resources=pod_resources,
        holdings=MarkerHoldings(options.paths.directory),
        pods=pods.known,
        metrics=steering_metrics,
        timing=options.steer or SteeringTiming(),
    )


def check_boot_id(node: ApiNode, boot_id: str) -> None:
    """``StateError`` if the Node object is that of another machine, or of this one before it was booted."""
    expected = node.status.node_info.boot_id
    if expected and boot_id and expected != boot_id:
        raise StateError(
            f"node {node.metadata.name} is another machine, or its kubelet has not started since the last boot: "
            f"its boot id is {expected}, that of this machine is {boot_id}"
        )


class PodTable:
    """The pods of one host, as the API server has them."""

    def __init__(self, client: ApiClient, host: str) -> None:
        self._informer: Informer[ApiPod] = Informer(client, PODS, Query(fields=f"spec.nodeName={host}"))
        self._read: dict[str, tuple[str, KnownPod]] = {}  #: by uid in the API server: resource version and pod

    def known(self) -> Mapping[str, KnownPod] | None:
        """Return the pods by the uid that the kubelet uses; ``None`` if they have not been listed."""
        if not self._informer.synced:
            return None
        pods: dict[str, tuple[str, KnownPod]] = {}
        uids = {pod.metadata.uid for pod in self._informer.objects.values()}
        for pod in self._informer.objects.values():
            uid, version = pod.metadata.uid, pod.metadata.resource_version
            before = self._read.get(uid)
            try:
                known = before and before[0] == version
                pods[uid] = before if before and known else (version, known_pod(pod, uid=kubelet_uid(pod, uids)))
            except PodError as error:
                _log.warning("pod left out", pod=pod.metadata.full_name, uid=pod.metadata.uid, problem=str(error))
        self._read = pods
        return {known.pod.uid: known for _, known in pods.values()}

    @property
    def problems(self) -> tuple[str, ...]:
        return (str(self._informer.error),) if self._informer.error else ()

    @asynccontextmanager
    async def following(self, notify: Callable[[], None]) -> AsyncIterator[None]:
        """Follow the API server inside the context, and call *notify* after each change that matters to the node."""
        before = self.known()

        def changed(_change: object) -> None:
            nonlocal before
            pods = self.known()
            if pods is None or pods != before:  # most changes of a status are none
                before = pods
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
        self._known: tuple[Slice, ...] = ()

    def known(self) -> KnownSlices:
        """Return the slices; a cluster without this resource has no gap."""
        error = self._informer.error
        if self._informer.synced:
            return KnownSlices(self._known)
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
                known = tuple(slice_ for slices in self._read.values() for slice_ in slices)
                if known != self._known:
                    self._known = known
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
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _configz(
    access: Access, options: ObserveOptions, node: ApiNode
) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """Yield a function that asks the kubelet for its configuration.

    Its certificate is verified with the authority of the cluster, and with the certificate in the kubelet's files.
    """
    addresses = [address.address for address in node.status.addresses if address.type == "InternalIP"]
    internal = next(iter(addresses), "127.0.0.1")
    default = f"[{internal}]:{KUBELET_PORT}" if ":" in internal else f"{internal}:{KUBELET_PORT}"
    certificate = atomic_files.read(options.paths.directory / _KUBELET_CERTIFICATE)
    kubelet = replace(
        access,
        server=f"https://{options.kubelet_address or default}",
        authority=b"\n".join(filter(None, (certificate, access.authority))),
        server_name=options.host if certificate else "",
        proxy="",
        headers=(),
        source="the kubelet",
    )
    async with ApiClient(kubelet, timing=Timing(attempts=1)) as client:
        yield lambda: client.get_raw("/configz")
