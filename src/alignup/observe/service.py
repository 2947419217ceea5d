"""The node observer as a program: its access to the API server and the kubelet, its loop, and its HTTP endpoints."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import structlog

from alignup import garbage_collection
from alignup.align.machine import Device
from alignup.kubernetes.api import NODES, Access, ApiClient
from alignup.kubernetes.api.configz import configz_reader
from alignup.kubernetes.api.node_tables import PodTable, SliceTable, check_boot_id
from alignup.kubernetes.plugins.pod_resources import PodResourcesClient, pod_resources_client
from alignup.observe.app import ObserverMetrics, observer_app
from alignup.observe.kubelet_reader import KubeletPaths, KubeletReader
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
from alignup.web.asgi_server import run_until_signal, serve_tcp

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

    ``StateError`` if this is not the machine of the node, or the kubelet's files belong to another machine.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(access))
        node = await client.get(NODES.at(options.host))
        pods, slices = PodTable(client, options.host), SliceTable(client, options.host)
        configz = configz_reader(access, node, directory=options.paths.directory, address=options.kubelet_address)
        pod_resources = await stack.enter_async_context(pod_resources_client(options.paths.pod_resources))
        reader = KubeletReader(
            options.paths,
            pod_resources=pod_resources,
            pods=pods.known,
            slices=slices.known,
            configz=await stack.enter_async_context(configz) if options.configz else None,
        )
        check_boot_id(node, options.paths.host_root)
        publisher = Publisher(client, options.host, uid=node.metadata.uid)
        metrics = ObserverMetrics(options.host)
        observer = Observer(reader, publisher, metrics, timing=options.timing, method=options.method)
        steering = None
        if options.steer is not None:
            steering = _steering(
                client,
                options,
                reader=reader,
                pod_resources=pod_resources,
                pods=pods,
                metrics=metrics,
                owners=publisher.owners,
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
            await stack.enter_async_context(serve_tcp(app, options.listen, names=options.names))
        _log.info("observer started", host=options.host)
        if options.once:
            return await observer.check_once()
        if steering is not None:
            await stack.enter_async_context(steering.running())
        garbage_collection.set_for_service()
        await run_until_signal(observer.run())
    return ()


def _steering(  # noqa: PLR0913 - the parts that it shares with the observer
    client: ApiClient,
    options: ObserveOptions,
    *,
    reader: KubeletReader,
    pod_resources: PodResourcesClient,
    pods: PodTable,
    metrics: ObserverMetrics,
    owners: Sequence[Mapping[str, str]],
) -> Steering:
    steering_metrics = SteeringMetrics(metrics.registry)

    def markers() -> tuple[Device, ...]:
        machine = reader.machine()
        return make_markers(*machine) if machine else ()

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
        owners=owners,
        timing=options.steer or SteeringTiming(),
    )
