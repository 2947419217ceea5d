"""The agent as a process: what stood is put together again, then it listens until it is told to stop."""

import asyncio
import gc
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structlog.typing import FilteringBoundLogger

from alignup import __version__
from alignup.agent import log as logs
from alignup.agent import notify
from alignup.agent.address import Address, Tcp
from alignup.agent.desk import Desk
from alignup.agent.errands import Errands
from alignup.agent.front import Front, read_pod, runnable
from alignup.agent.keeping import Keeper
from alignup.agent.known import API
from alignup.agent.manifests import Folder
from alignup.agent.notify import Notifier
from alignup.agent.recovery import Imported, Recovered, Terms, recover
from alignup.agent.standing import Clock
from alignup.agent.telling import Teller
from alignup.agent.watching import Watcher
from alignup.align.errors import ListenError
from alignup.align.host import Host
from alignup.align.machine import Machine
from alignup.discover import document as machines
from alignup.serve import app, listen
from alignup.serve.app import Behind, ReadPod
from alignup.serve.feed import Feed
from alignup.serve.metrics import Metrics
from alignup.serve.service import NotReadyError
from alignup.state.history import History
from alignup.state.lock import lock
from alignup.state.store import Store

if TYPE_CHECKING:
    from alignup.agent.pods.assembly import Containers
    from alignup.agent.pods.runner import Runner

#: In the root unless said otherwise: the directory of device plugins, and the socket of PodResources.
PLUGINS, POD_RESOURCES, LISTER = "device-plugins", "pod-resources", "kubelet.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the agent is to do."""

    host: Host  #: idle
    root: Path  #: where everything is that has to survive
    address: Address
    token_file: Path | None = None
    manifests: Path | None = None
    terms: Terms = field(default_factory=Terms)
    history: int = 10_000  #: decisions of the past that are kept
    plugins: Path | None = None  #: the directory of device plugins; ``None``: in the root
    lister: Path | None = None  #: the socket of PodResources; ``None``: in the root
    imported: Callable[[], Imported] | None = None  #: what a kubelet left, for a root that is empty
    containers: "Containers | None" = None  #: how pods are run; ``None``: they are not
    notes: tuple[str, ...] = ()  #: what to say first
    clock: Clock = field(default_factory=lambda: Clock(now=time.time, watch=time.perf_counter))


def run(options: Options) -> None:
    """Be the agent until somebody says stop; ``CheckpointError`` or ``ListenError`` where it cannot even begin."""
    log = logs.logger()
    store = Store(options.root)
    with lock(options.root), logs.relayed(log):
        for note in options.notes:
            log.warning("note", detail=note)
        recovered = recover(
            store, options.host, terms=options.terms, now=options.clock.now(), imported=options.imported
        )
        _tell_recovered(recovered, log, watched=options.manifests is not None)
        # What is here now stays; without this every pod would be looked at each time memory is tidied.
        gc.collect()
        gc.freeze()
        asyncio.run(_main(options, store, recovered, log=log))


def _tell_recovered(recovered: Recovered, log: FilteringBoundLogger, *, watched: bool) -> None:
    for note in recovered.notes:
        log.warning("recovered", detail=note)
    orphans = [known.pod.name for known in recovered.standing.everyone() if known.source != API]
    if orphans and not watched:
        log.warning("recovered", detail=f"pods of manifests that are not watched now stay: {', '.join(orphans)}")
    for problem in recovered.problems:
        log.error("not ready", detail=problem)


async def _main(options: Options, store: Store, recovered: Recovered, *, log: FilteringBoundLogger) -> None:
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
            watcher = Watcher(_folder(options, options.manifests), desk, log=log, ends=runner is not None)
        front = Front(desk, errands, history, feed, runner, watcher)
        if runner is not None:
            metrics.show_containers(lambda: [(one.pod, one.run) for one in front.entries() if one.run is not None])
        await stack.enter_async_context(_listening(options, front, metrics))
        stack.push_async_callback(errands.close)  # before requests are waited for, some of which wait for plugins
        await stack.enter_async_context(_beside(watcher, desk, notifier))
        pods, waiting = len(desk.standing.held), len(desk.standing.line.pods)
        log.info("listening", at=str(options.address), pods=pods, waiting=waiting)
        notifier.tell(notify.READY, notify.status(f"{pods} pods are here, {waiting} wait"))
        await stop.wait()
        notifier.tell(notify.STOPPING)
        log.info("stopping")
    log.info("stopped")


def _assembled(
    options: Options, store: Store, recovered: Recovered, *, log: FilteringBoundLogger
) -> tuple[Desk, History, Feed, Metrics, Teller]:
    """The desk, and whoever hears what happens there."""
    history = History(options.root, rows=options.history)
    if note := history.open():
        log.warning("history", detail=note)
    feed = Feed(now=options.clock.now)
    made: list[Desk] = []
    metrics = Metrics(
        lambda: made[0].settled if made else recovered.standing.host,
        waiting=lambda: len(made[0].standing.line.pods) if made else 0,
    )
    teller = Teller(asyncio.get_running_loop(), log=log, history=history, metrics=metrics, feed=feed)
    keeper = Keeper(store, options.host)
    desk = Desk(recovered.standing, keeper, clock=options.clock, tell=teller, problems=recovered.problems)
    made.append(desk)
    return desk, history, feed, metrics, teller


def _plugged(
    options: Options, desk: Desk, metrics: Metrics, *, log: FilteringBoundLogger
) -> AbstractAsyncContextManager[Errands]:
    """Device plugins and PodResources."""
    from alignup.agent.plugged import plugged  # noqa: PLC0415 - gRPC is for whoever runs an agent, and nobody else

    directory = options.plugins or options.root / PLUGINS
    lister = options.lister or options.root / POD_RESOURCES / LISTER
    return plugged(desk, directory=directory, lister=lister, metrics=metrics, log=log)


@asynccontextmanager
async def _running(  # noqa: PLR0913 - everybody who is spoken to
    options: Options,
    containers: "Containers",
    desk: Desk,
    *,
    errands: Errands,
    teller: Teller,
    log: FilteringBoundLogger,
) -> "AsyncIterator[Runner | None]":
    """Pods run as long as this lasts; where nothing may be decided, they are left as they are."""
    if desk.barred:
        log.warning("runtime", detail="containers are left as they are while nothing can be decided")
        yield None
        return
    from alignup.agent.pods.assembly import running  # noqa: PLC0415 - for whoever runs pods, and nobody else

    async with running(
        containers,
        desk,
        root=options.root,
        errands=errands,
        clock=options.clock,
        tell=lambda happening: teller([happening]),
        log=log,
    ) as runner:
        teller.wake(runner.nudge)
        yield runner


def _folder(options: Options, manifests: Path) -> Folder:
    """The directory of manifests; those that are run have to be runnable."""
    if options.containers is None:
        return Folder(manifests)
    return Folder(manifests, accept=runnable(options.containers.allowed), keep=True)


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
async def _listening(options: Options, front: Front, metrics: Metrics) -> AsyncIterator[None]:
    """Answer requests as long as this lasts."""
    token = None if options.token_file is None else listen.read_token(options.token_file)
    stopping = asyncio.Event()
    reader: ReadPod = read_pod
    if options.containers is not None:
        reader = partial(read_pod, accept=runnable(options.containers.allowed), keep=True)
    behind = Behind(
        service=front,
        read_pod=reader,
        machine_document=machine_document,
        metrics=metrics,
        version=__version__,
    )
    made = app.build(behind, token=token, stopping=stopping)
    with _socket(options.address, token=token) as bound:
        async with listen.serving(made, bound, stopping=stopping):
            yield


@contextmanager
def _socket(address: Address, *, token: bytes | None) -> Iterator[socket.socket]:
    """Where requests come in; on the network only with a token."""
    if not isinstance(address, Tcp):
        with listen.unix_socket(address.path) as bound:
            yield bound
        return
    if token is None:
        raise ListenError(f"nobody may talk to {address} without a token\nname a file that holds one: --token-file")
    with listen.tcp_socket(address.port, address.host) as bound:
        yield bound


@asynccontextmanager
async def _beside(watcher: Watcher | None, desk: Desk, notifier: Notifier) -> AsyncIterator[None]:
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


async def _live(desk: Desk, notifier: Notifier, *, every: float) -> None:
    """Give signs of life while the desk is alive."""
    while desk.alive:
        notifier.tell(notify.WATCHDOG)
        await asyncio.sleep(every)


def machine_document(machine: Machine) -> dict[str, Any]:
    """A machine as JSON values."""
    document: dict[str, Any] = json.loads(machines.dump_json(machine))
    return document
