"""``alignup nri`` as a program: the plugin, what it follows, and its HTTP endpoints."""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from alignup import atomic_files
from alignup.align.devices.fixed import FixedDeviceProvider
from alignup.align.errors import FileError
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.align.policy_overrides import PolicyOverrides
from alignup.kubernetes.api import NODES, Access, ApiClient
from alignup.kubernetes.api.configz import configz_reader, read_configuration
from alignup.kubernetes.api.node_tables import PodTable, SliceTable, check_boot_id
from alignup.kubernetes.plugins.pod_resources import pod_resources_client
from alignup.machines import machine_source
from alignup.nri.assist import AssistPlugin
from alignup.nri.decide import DecidePlugin
from alignup.nri.decide_settings import check_managers, decide_settings
from alignup.nri.durable_host import DurableHost
from alignup.nri.kubelet_pool import NONE_POLICY, KubeletPoolReader
from alignup.nri.metrics import NriMetrics
from alignup.nri.node_pods import NodePods
from alignup.nri.nri_plugin import PluginConnection
from alignup.nri.placement_file import PlacementFile
from alignup.store.lock import lock
from alignup.store.state_store import StateStore
from alignup.web.asgi_server import ServerLimits, run_until_signal, serve_app
from alignup.web.metrics import health_app
from alignup.web.sockets import tcp_socket

NAME = "alignup"
_CONFIG_FILE = "config.yaml"  #: of the kubelet, in its directory
_POD_RESOURCES = "pod-resources/kubelet.sock"  #: the same
_LIST_SECONDS = 1.0  #: for PodResources; a runtime waits for two

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class NriOptions:
    path: Path  #: of the runtime's NRI
    index: str  #: two digits; plugins with lower ones are called earlier
    kubelet_dir: Path
    host_root: Path
    state_dir: Path | None  #: for the ledger and the file of placements; ``None``: neither
    listen: tuple[str, int] | None  #: of the HTTP endpoints; ``None``: none
    names: tuple[str, ...]  #: by which clients call them, beside those of this machine
    period: float  #: seconds between checks of the kubelet's state files


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideOptions:
    host: str  #: the name of the Kubernetes node
    policies: PolicyOverrides
    configz: bool = True  #: whether to ask the kubelet for its live configuration
    kubelet_address: str = ""  #: HOST:PORT; empty: the node's internal address
    pod_policy_annotations: bool = False
    memory_policy: str | None = None  #: such as ``MPOL_INTERLEAVE``


async def assist(options: NriOptions) -> None:
    """Run assist mode until SIGTERM or SIGINT; ``FileError`` or ``StateError`` if the kubelet's files are unusable."""
    machine = await asyncio.to_thread(machine_source.discover, options.host_root)
    reader = KubeletPoolReader(options.kubelet_dir, machine)
    pool = reader.read()
    if pool.policy == NONE_POLICY:
        _log.info("the kubelet's CPU manager gives no CPUs away; all CPUs are shared")
    metrics = NriMetrics()
    if options.state_dir is not None:
        atomic_files.make_directory(options.state_dir, mode=0o700)
    async with AsyncExitStack() as stack:
        await _serve(stack, AssistPlugin(reader.read, metrics), metrics, options)


async def decide(access: Access, options: NriOptions, decide_options: DecideOptions, directory: Path) -> None:
    """Run decide mode until SIGTERM or SIGINT, with the ledger in *directory*.

    ``StateError`` if the kubelet's own managers are on, or this is not the machine of the node; other ``AlignError`` if
    the API server, the configuration or the ledger cannot be read.
    """
    machine = replace(await asyncio.to_thread(machine_source.discover, options.host_root), devices=())
    atomic_files.make_directory(directory, mode=0o700)
    async with AsyncExitStack() as stack:
        stack.enter_context(lock(directory))
        client = await stack.enter_async_context(ApiClient(access))
        host = await _host(access, client, machine, options, decide_options)
        durable = DurableHost(host, StateStore(directory))
        durable.load()
        table, slices = PodTable(client, decide_options.host), SliceTable(client, decide_options.host)
        resources = pod_resources_client(options.kubelet_dir / _POD_RESOURCES, seconds=_LIST_SECONDS)
        lister = await stack.enter_async_context(resources)
        pods = NodePods(machine, pods=table.known, slices=slices.known, list_resources=lister.list)
        metrics = NriMetrics()
        plugin = DecidePlugin(durable, pods, metrics, memory_policy=decide_options.memory_policy)

        def changed() -> None:
            pods.notify()
            plugin.release_ended()

        await stack.enter_async_context(table.following(changed))
        await stack.enter_async_context(slices.following(lambda: None))
        await _serve(stack, plugin, metrics, options)


async def _host(
    access: Access, client: ApiClient, machine: Machine, options: NriOptions, decide_options: DecideOptions
) -> Host:
    """Return the idle host of decide mode, as the kubelet's configuration and the options say."""
    node = await client.get(NODES.at(decide_options.host))
    check_boot_id(node, options.host_root)
    reader = configz_reader(access, node, directory=options.kubelet_dir, address=decide_options.kubelet_address)
    async with reader as configz:
        source = configz if decide_options.configz else None
        kubelet, notes = await read_configuration(options.kubelet_dir / _CONFIG_FILE, None, source)
    for note in notes:
        _log.warning("about the kubelet's configuration", note=note)
    check_managers(kubelet)
    policies = decide_options.policies
    settings = policies.apply(policies.settings or decide_settings(kubelet, machine))
    settings = replace(settings, fit_check=False, pod_policy_annotations=decide_options.pod_policy_annotations)
    host = Host(machine, settings, others=[FixedDeviceProvider(machine.kubelet_view().all_nodes)])
    topology = settings.topology
    _log.info("deciding", policy=str(topology.policy), scope=str(topology.scope), cpus=str(settings.cpus.policy))
    return host


async def _serve(stack: AsyncExitStack, plugin: AssistPlugin, metrics: NriMetrics, options: NriOptions) -> None:
    connection = PluginConnection(plugin, name=NAME, index=options.index, path=options.path)
    if options.listen is not None:
        app = health_app(metrics.registry, readiness=lambda: tuple(filter(None, (connection.problem, plugin.problem))))
        listener = stack.enter_context(tcp_socket(options.listen[1], options.listen[0]))
        limits = ServerLimits(names=(*options.names, options.listen[0]))
        await stack.enter_async_context(serve_app(app, listener, stopping=asyncio.Event(), limits=limits))
    placements = PlacementFile(options.state_dir, plugin) if options.state_dir is not None else None
    await run_until_signal(_run(plugin, connection, metrics, placements, options.period))


async def _run(
    plugin: AssistPlugin,
    connection: PluginConnection,
    metrics: NriMetrics,
    placements: PlacementFile | None,
    period: float,
) -> None:
    problem = ""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(connection.run())
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(plugin.wake.wait(), period)
            plugin.wake.clear()
            if connection.synchronized:
                await plugin.rebalance(connection)
            if isinstance(plugin, DecidePlugin):
                metrics.unaligned.set(len(plugin.unaligned))
            try:
                if placements is not None:
                    placements.write(connection.problem)
                problem = ""
            except FileError as error:
                if problem != str(error):
                    _log.warning("the placements cannot be written", problem=str(error))
                problem = str(error)
