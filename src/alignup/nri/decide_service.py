"""Decide mode as a program: what it reads from the API server and the kubelet, and its ledger."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from alignup import atomic_files
from alignup.align.devices.fixed import FixedDeviceProvider
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.align.policy_overrides import PolicyOverrides
from alignup.kubernetes.api import NODES, Access, ApiClient
from alignup.kubernetes.api.configz import configz_reader, read_configuration
from alignup.kubernetes.api.node_tables import PodTable, SliceTable, check_boot_id
from alignup.kubernetes.plugins.pod_resources import pod_resources_client
from alignup.machines import machine_source
from alignup.nri.decide import DecidePlugin
from alignup.nri.decide_settings import check_managers, decide_settings
from alignup.nri.durable_host import DurableHost
from alignup.nri.metrics import NriMetrics
from alignup.nri.node_pods import NodePods
from alignup.nri.service import NriOptions, serve_plugin
from alignup.store.lock import lock
from alignup.store.state_store import StateStore

_CONFIG_FILE = "config.yaml"  #: of the kubelet, in its directory
_POD_RESOURCES = "pod-resources/kubelet.sock"  #: the same
_LIST_SECONDS = 1.0  #: for PodResources; a runtime waits for two

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideOptions:
    host: str  #: the name of the Kubernetes node
    policies: PolicyOverrides
    configz: bool = True  #: whether to ask the kubelet for its live configuration
    kubelet_address: str = ""  #: HOST:PORT; empty: the node's internal address
    pod_policy_annotations: bool = False
    memory_policy: str | None = None  #: such as ``MPOL_INTERLEAVE``


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
        await serve_plugin(stack, plugin, metrics, options)


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
