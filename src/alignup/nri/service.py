"""``alignup nri`` as a program: the plugin, its HTTP endpoints, and assist mode; ``decide_service`` has the other."""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from alignup import atomic_files
from alignup.align.errors import FileError
from alignup.machines import machine_source
from alignup.nri.assist import AssistPlugin
from alignup.nri.kubelet_pool import NONE_POLICY, KubeletPoolReader
from alignup.nri.metrics import NriMetrics
from alignup.nri.nri_plugin import PluginConnection
from alignup.nri.placement_file import PlacementFile
from alignup.web.asgi_server import run_until_signal, serve_tcp
from alignup.web.metrics import health_app

NAME = "alignup"

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
        await serve_plugin(stack, AssistPlugin(reader.read, metrics), metrics, options)


async def serve_plugin(stack: AsyncExitStack, plugin: AssistPlugin, metrics: NriMetrics, options: NriOptions) -> None:
    """Run *plugin* until SIGTERM or SIGINT."""
    connection = PluginConnection(plugin, name=NAME, index=options.index, path=options.path)
    if options.listen is not None:
        app = health_app(metrics.registry, readiness=lambda: tuple(filter(None, (connection.problem, plugin.problem))))
        await stack.enter_async_context(serve_tcp(app, options.listen, names=options.names))
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
            metrics.unaligned.set(len(plugin.unaligned))
            try:
                if placements is not None:
                    placements.write(connection.problem)
                problem = ""
            except FileError as error:
                if problem != str(error):
                    _log.warning("the placements cannot be written", problem=str(error))
                problem = str(error)
