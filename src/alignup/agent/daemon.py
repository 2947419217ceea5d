"""The agent as a process: what stood is put together again, then it listens until it is told to stop."""

import asyncio
import gc
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from alignup import __version__
from alignup.agent import log as logs
from alignup.agent import sd_notify
from alignup.agent.address import Address, TcpAddress
from alignup.agent.checkpointer import Checkpointer
from alignup.agent.devices.allocator import DeviceAllocator
from alignup.agent.events import EventDispatcher
from alignup.agent.manifests.directory import ManifestDir
from alignup.agent.manifests.watcher import ManifestWatcher
from alignup.agent.pod_record import API_SOURCE
from alignup.agent.queue import AdmissionQueue
from alignup.agent.recovery import ImportedState, RecoveryOptions, RecoveryResult, recover
from alignup.agent.sd_notify import Notifier
from alignup.agent.service import AgentService, accept_runnable, read_pod
from alignup.agent.state import Clock
from alignup.align.errors import ListenError
from alignup.align.host import Host
from alignup.schema.api import NotReadyError
from alignup.schema.machines import machine_to_document
from alignup.serve import app, sockets
from alignup.serve.app import Dependencies, ReadPod
from alignup.serve.event_bus import EventBus
from alignup.serve.metrics import Metrics
from alignup.state.checkpoint import CheckpointStore
from alignup.state.history import History
from alignup.state.lock import lock

if TYPE_CHECKING:
    from alignup.agent.pods.runner import PodRunner
    from alignup.agent.pods.wiring import PodRuntimeOptions

#: In the root unless said otherwise: the directory of device plugins, and the socket of PodResources.
PLUGIN_DIR, POD_RESOURCES_DIR, POD_RESOURCES_SOCKET = "device-plugins", "pod-resources", "kubelet.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """What the agent is to do."""

    host: Host  #: idle
    root: Path  #: where everything is that has to survive
    address: Address
    token_file: Path | None = None
    manifests: Path | None = None
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    history: int = 10_000  #: decisions of the past that are kept
    plugins: Path | None = None  #: the directory of device plugins; ``None``: in the root
    pod_resources_socket: Path | None = None  #: the socket of PodResources; ``None``: in the root
    imported: Callable[[], ImportedState] | None = None  #: what a kubelet left, for a root that is empty
    containers: "PodRuntimeOptions | None" = None  #: how pods are run; ``None``: they are not
    notes: tuple[str, ...] = ()  #: what to say first
    clock: Clock = field(default_factory=lambda: Clock(now=time.time, watch=time.perf_counter))


def run(options: DaemonOptions) -> None:
    """Be the agent until somebody says stop; ``CheckpointError`` or ``ListenError`` where it cannot even begin."""
    log = logs.make_logger()
    store = CheckpointStore(options.root)
    with lock(options.root), logs.relay_logging(log):
        for note in options.notes:
            log.warning("note", detail=note)
        recovered = recover(
            store, options.host, terms=options.recovery, now=options.clock.now(), imported=options.imported
        )
        _tell_recovered(recovered, log, watched=options.manifests is not None)
        # What is here now stays; without this every pod would be looked at each time memory is tidied.
        gc.collect()
        gc.freeze()
        asyncio.run(_main(options, store, recovered, log=log))


def _tell_recovered(recovered: RecoveryResult, log: FilteringBoundLogger, *, watched: bool) -> None:
    for note in recovered.notes:
        log.warning("recovered", detail=note)
    orphans = [known.pod.name for known in recovered.standing.everyone() if known.source != API_SOURCE]
    if orphans and not watched:
        log.warning("recovered", detail=f"pods of manifests that are not watched now stay: {', '.join(orphans)}")
    for problem in recovered.problems:
        log.error("not ready", detail=problem)


async def _main(
    options: DaemonOptions, store: CheckpointStore, recovered: RecoveryResult, *, log: FilteringBoundLogger
) -> None:
    """Everything that lives in the event loop."""
    stop = _signals(log)
    notifier = Notifier.of_environment(os.environ, pid=os.getpid())
    async with AsyncExitStack() as stack:
        desk, history, feed, metrics, teller = _assembled(options, store, recovered, log=log)
        stack.callback(history.close)
        stack.push_async_callback(asyncio.to_thread, desk.close)
        with suppress(NotReadyError):  # said by /readyz, and those who wait are tried again at the next release
            await desk.try_waiting()
        errands = await stack.enter_async_context(_plugged(options, desk, metrics, log=log))
        runner = None
        if options.containers is not None:
            runner = await stack.enter_async_context(
                _running(options, options.containers, desk, errands=errands, teller=teller, log=log)
            )
        watcher = None
        if options.manifests is not None and not recovered.problems:
            watcher = ManifestWatcher(_folder(options, options.manifests), desk, log=log, ends=runner is not None)
        front = AgentService(desk, errands, history, feed, runner, watcher)
        if runner is not None:
            metrics.show_containers(lambda: [(one.pod, one.run) for one in front.pod_views() if one.run is not None])
        await stack.enter_async_context(_listening(options, front, metrics))
        stack.push_async_callback(errands.close)  # before requests are waited for, some of which wait for plugins
        await stack.enter_async_context(_beside(watcher, desk, notifier))
        pods, waiting = len(desk.standing.held), len(desk.standing.line.pods)
        log.info("listening", at=str(options.address), pods=pods, waiting=waiting)
        notifier.tell(sd_notify.READY, sd_notify.status_line(f"{pods} pods are here, {waiting} wait"))
        await stop.wait()
        notifier.tell(sd_notify.STOPPING)
        log.info("stopping")
    log.info("stopped")


def _assembled(
    options: DaemonOptions, store: CheckpointStore, recovered: RecoveryResult, *, log: FilteringBoundLogger
) -> tuple[AdmissionQueue, History, EventBus, Metrics, EventDispatcher]:
    """The desk, and whoever hears what happens there."""
    history = History(options.root, rows=options.history)
    if note := history.open():
        log.warning("history", detail=note)
    feed = EventBus(now=options.clock.now)
    made: list[AdmissionQueue] = []
    metrics = Metrics(
        lambda: made[0].settled if made else recovered.standing.host,
        waiting=lambda: len(made[0].standing.line.pods) if made else 0,
    )
    teller = EventDispatcher(asyncio.get_running_loop(), log=log, history=history, metrics=metrics, feed=feed)
    keeper = Checkpointer(store, options.host)
    desk = AdmissionQueue(recovered.standing, keeper, clock=options.clock, tell=teller, problems=recovered.problems)
    made.append(desk)
    return desk, history, feed, metrics, teller


def _plugged(
    options: DaemonOptions, desk: AdmissionQueue, metrics: Metrics, *, log: FilteringBoundLogger
) -> AbstractAsyncContextManager[DeviceAllocator]:
    """Device plugins and PodResources."""
    from alignup.agent.devices.plugin_wiring import serve_plugins  # noqa: PLC0415 - gRPC is for whoever runs an agent, and nobody else

    directory = options.plugins or options.root / PLUGIN_DIR
    lister = options.pod_resources_socket or options.root / POD_RESOURCES_DIR / POD_RESOURCES_SOCKET
    return serve_plugins(desk, directory=directory, lister=lister, metrics=metrics, log=log)


@asynccontextmanager
async def _running(  # noqa: PLR0913 - everybody who is spoken to
    options: DaemonOptions,
    containers: "PodRuntimeOptions",
    desk: AdmissionQueue,
    *,
    errands: DeviceAllocator,
    teller: EventDispatcher,
    log: FilteringBoundLogger,
) -> "AsyncIterator[PodRunner | None]":
    """Pods run as long as this lasts; where nothing may be decided, they are left as they are."""
    if desk.barred:
        log.warning("runtime", detail="containers are left as they are while nothing can be decided")
        yield None
        return
    from alignup.agent.pods.wiring import run_pods  # noqa: PLC0415 - for whoever runs pods, and nobody else

    async with run_pods(
        containers,
        desk,
        root=options.root,
        pre_start=errands.pre_start,
        clock=options.clock,
        emit=lambda happening: teller([happening]),
        log=log,
    ) as runner:
        teller.wake(runner.nudge)
        yield runner


def _folder(options: DaemonOptions, manifests: Path) -> ManifestDir:
    """The directory of manifests; those that are run have to be runnable."""
    if options.containers is None:
        return ManifestDir(manifests)
    return ManifestDir(manifests, accept=accept_runnable(options.containers.allowed), keep=True)


def _signals(log: FilteringBoundLogger) -> asyncio.Event:
    """Set when the agent is to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(
        signal.SIGHUP, lambda: log.info("SIGHUP is not heeded: stop and start the agent to change its settings")
    )
    return stop


@asynccontextmanager
async def _listening(options: DaemonOptions, front: AgentService, metrics: Metrics) -> AsyncIterator[None]:
    """Answer requests as long as this lasts."""
    token = None if options.token_file is None else sockets.read_token(options.token_file)
    stopping = asyncio.Event()
    reader: ReadPod = read_pod
    if options.containers is not None:
        reader = partial(read_pod, accept=accept_runnable(options.containers.allowed), keep=True)
    behind = Dependencies(
        service=front,
        read_pod=reader,
        machine_document=machine_to_document,
        metrics=metrics,
        version=__version__,
    )
    made = app.build_app(behind, token=token, stopping=stopping)
    with _socket(options.address, token=token) as bound:
        async with sockets.serve_app(made, bound, stopping=stopping):
            yield


@contextmanager
def _socket(address: Address, *, token: bytes | None) -> Iterator[socket.socket]:
    """Where requests come in; on the network only with a token."""
    if not isinstance(address, TcpAddress):
        with sockets.unix_socket(address.path) as bound:
            yield bound
        return
    if token is None:
        raise ListenError(f"nobody may talk to {address} without a token\nname a file that holds one: --token-file")
    with sockets.tcp_socket(address.port, address.host) as bound:
        yield bound


@asynccontextmanager
async def _beside(watcher: ManifestWatcher | None, desk: AdmissionQueue, notifier: Notifier) -> AsyncIterator[None]:
    """What goes on beside requests: manifests are watched, and systemd gets its signs of life."""
    tasks = []
    if watcher is not None:
        tasks.append(asyncio.ensure_future(watcher.watch()))
    if notifier.watchdog is not None:
        tasks.append(asyncio.ensure_future(_live(desk, notifier, every=notifier.watchdog / 3)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def _live(desk: AdmissionQueue, notifier: Notifier, *, every: float) -> None:
    """Give signs of life while the desk is alive."""
    while desk.alive:
        notifier.tell(sd_notify.WATCHDOG)
        await asyncio.sleep(every)
