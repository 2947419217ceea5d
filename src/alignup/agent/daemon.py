"""The agent as a process: restore the state, then serve until a signal arrives."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import structlog
from starlette.types import ASGIApp
from structlog.typing import FilteringBoundLogger

from alignup import garbage_collection
from alignup.agent.admission_queue import AdmissionQueue, QueueProbe
from alignup.agent.app import build_app
from alignup.agent.device_allocator import serve_plugins
from alignup.agent.event_dispatcher import EventDispatcher
from alignup.agent.event_history import EventHistory
from alignup.agent.manifest_dir import ManifestDir, ManifestWatcher
from alignup.agent.metrics import Metrics
from alignup.agent.parts import AgentParts
from alignup.agent.recovery import ImportedState, RecoveryOptions, RecoveryResult, recover
from alignup.agent.state import API_SOURCE, Clock
from alignup.agent.transaction import Transaction
from alignup.align.errors import ListenError, TlsRequiredError
from alignup.align.host import Host
from alignup.store.lock import lock
from alignup.store.state_store import StateStore
from alignup.tasks import cancel_tasks
from alignup.web import sockets
from alignup.web.address import Address, TcpAddress
from alignup.web.asgi_server import ServerLimits, serve_app
from alignup.web.authentication import AccessRules, Sessions
from alignup.web.event_streams import EventBus
from alignup.web.log import LogQueue, queued_stderr
from alignup.web.responses import BusyError, NotReadyError

#: Defaults in the root directory.
PLUGIN_DIR, POD_RESOURCES_DIR, POD_RESOURCES_SOCKET = "device-plugins", "pod-resources", "kubelet.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    host: Host  #: idle
    root: Path  #: directory of everything durable
    address: Address
    web_address: TcpAddress | None = None  #: of the pages, for browsers; ``None``: only at ``address``
    token_file: Path | None = None
    certificate: Path | None = None  #: for TLS, with ``private_key``
    private_key: Path | None = None
    names: tuple[str, ...] = ()  #: by which clients call the agent over plain HTTP, beside those of its machine
    insecure_http: bool = False  #: allow plain HTTP on non-loopback addresses
    manifests: Path | None = None
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    history: int = 10_000  #: decisions to keep
    plugins: Path | None = None  #: directory of device plugins; ``None``: in the root directory
    pod_resources_socket: Path | None = None  #: ``None``: in the root directory
    imported: Callable[[], ImportedState] | None = None  #: a kubelet's state, for an empty root directory
    notes: tuple[str, ...] = ()  #: to log first
    clock: Clock = field(default_factory=lambda: Clock(now=time.time, monotonic=time.perf_counter))


@dataclass(frozen=True, slots=True)
class Notifier:
    """The socket of systemd, which must be notified that the service is ready, stopping or alive (sd_notify(3)).

    ``NOTIFY_SOCKET`` names a datagram socket: a path, or with an ``@`` an abstract address.
    """

    address: str  #: empty: not started by systemd
    watchdog: float | None = None  #: seconds between required notifications; ``None``: no watchdog

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], *, pid: int) -> Self:
        path = environment.get("NOTIFY_SOCKET", "")
        address = path if path[:1] in {"/", "@"} else ""
        micros = environment.get("WATCHDOG_USEC", "")
        for_this_process = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        watched = bool(address) and for_this_process and micros.isdecimal() and int(micros) > 0
        return cls(address, int(micros) / 1_000_000 if watched else None)

    def send(self, *messages: str) -> bool:
        """Return whether the messages were sent; failures are ignored."""
        if not self.address:
            return False
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(0)
                sender.sendto(
                    "\n".join(" ".join(message.split()) for message in messages).encode("utf-8", "replace"), address
                )
        except OSError:
            return False
        return True


def run(options: DaemonOptions) -> None:
    """Run the agent until a signal stops it; raise ``StoreError`` or ``ListenError`` if it cannot start."""
    store = StateStore(options.root, max_decisions=options.history)
    with queued_stderr() as log_queue, lock(options.root):
        log = structlog.get_logger().bind()
        for note in options.notes:
            log.warning("note", detail=note)
        now = options.clock.now()
        recovery = recover(store, options.host, options=options.recovery, now=now, imported=options.imported)
        for note in recovery.notes:
            log.warning("recovered", detail=note)
        pod_names = [record.pod.name for record in recovery.state.all_records() if record.source != API_SOURCE]
        if pod_names and options.manifests is None:
            detail = f"pods from manifests stay, but their directory is not watched: {', '.join(pod_names)}"
            log.warning("recovered", detail=detail)
        for problem in recovery.messages(options.recovery):
            log.error("not ready", detail=problem)
        asyncio.run(_main(options, store, recovery, log, log_queue))


async def _main(
    options: DaemonOptions, store: StateStore, recovery: RecoveryResult, log: FilteringBoundLogger, log_queue: LogQueue
) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    sighup_message = "SIGHUP is ignored: restart the agent to change its settings"
    loop.add_signal_handler(signal.SIGHUP, log.info, sighup_message)
    notifier = Notifier.of_environment(os.environ, pid=os.getpid())
    async with AsyncExitStack() as stack:
        queue, events = _start_queue(options, store, recovery, log=log)
        stack.callback(store.close)
        stack.push_async_callback(asyncio.to_thread, queue.close)
        with suppress(NotReadyError):  # /readyz reports the reason, and the next release retries the waiting pods
            await queue.run(Transaction.retry_waiting)
        directory = options.plugins or options.root / PLUGIN_DIR
        pod_resources = options.pod_resources_socket or options.root / POD_RESOURCES_DIR / POD_RESOURCES_SOCKET
        allocator = await stack.enter_async_context(
            serve_plugins(queue, directory=directory, pod_resources=pod_resources, metrics=events.metrics, log=log)
        )
        watcher = None
        if options.manifests is not None and not recovery.problems:
            watcher = ManifestWatcher(ManifestDir(options.manifests), queue, log)
        probe = QueueProbe(queue)
        agent = AgentParts(queue, probe, allocator, store.history, events.event_bus, watcher)
        events.metrics.show_dropped_log_lines(lambda: log_queue.dropped)
        address = await stack.enter_async_context(_serve_api(options, agent, events.metrics))
        stack.push_async_callback(allocator.close)  # before shutdown waits for requests that wait for plugins
        await stack.enter_async_context(background_tasks(watcher, queue, probe, notifier))
        pods, waiting_pods = len(queue.state.admitted), len(queue.state.waiting)
        log.info("listening", at=str(address), pods=pods, waiting=waiting_pods)
        notifier.send("READY=1", f"STATUS={pods} pods admitted, {waiting_pods} waiting")
        await stop.wait()
        notifier.send("STOPPING=1")
        log.info("stopping")
        await queue.flush_events()  # event streams end with what has happened so far
    log.info("stopped")


def _start_queue(
    options: DaemonOptions, store: StateStore, recovery: RecoveryResult, *, log: FilteringBoundLogger
) -> tuple[AdmissionQueue, EventDispatcher]:
    history = EventHistory(store, log)
    garbage_collection.set_for_service()
    queue = AdmissionQueue(
        recovery.state,
        history.save,
        clock=options.clock,
        dispatch=lambda batch: events(batch),  # noqa: PLW0108 - it does not exist yet
        record=history.record,
        problems=recovery.messages(options.recovery),
        when_idle=store.prepare_for_more,
    )
    metrics = Metrics(lambda: queue.state.settled_host(), waiting=lambda: len(queue.state.waiting))  # noqa: PLW0108
    bus = EventBus(now=options.clock.now)
    events = EventDispatcher(asyncio.get_running_loop(), log, metrics, bus, history.decision_id)
    return queue, events


@asynccontextmanager
async def _serve_api(options: DaemonOptions, agent: AgentParts, metrics: Metrics) -> AsyncIterator[Address]:
    """Yield the address, with the port that the system chose for port 0."""
    token = None if options.token_file is None else sockets.read_token(options.token_file)
    sessions = Sessions()
    access = AccessRules(everyone=token is None, token=token, sessions=sessions)
    stopping = asyncio.Event()
    async with AsyncExitStack() as stack:
        app = build_app(agent, metrics, access=access, stopping=stopping)
        bound_address = pages = await stack.enter_async_context(
            _listen(options, options.address, app, access, stopping)
        )
        if options.web_address is not None:  # browsers sign in, even if others need no token
            access = replace(access, everyone=False)
            app = build_app(agent, metrics, access=access, stopping=stopping)
            pages = await stack.enter_async_context(_listen(options, options.web_address, app, access, stopping))
        if isinstance(pages, TcpAddress):
            sessions.base_url = str(pages.for_clients())
        yield bound_address


@asynccontextmanager
async def _listen(
    options: DaemonOptions, address: Address, app: ASGIApp, access: AccessRules, stopping: asyncio.Event
) -> AsyncIterator[Address]:
    certificate = None
    if options.certificate is not None and options.private_key is not None:
        certificate = sockets.ServerCertificate(options.certificate, options.private_key)
    tls = None if certificate is None else certificate.context
    if not isinstance(address, TcpAddress):
        with sockets.unix_socket(address.path) as listener:
            async with serve_app(app, listener, stopping=stopping):
                yield address
        return
    if access.everyone:
        raise ListenError(f"listening on {address} requires a token")
    with sockets.tcp_socket(address.port, address.host) as listener:
        host, port = listener.getsockname()[:2]
        bound_address = TcpAddress(host, port, None if certificate is None else True)
        if certificate is None and not bound_address.is_loopback and not options.insecure_http:
            raise TlsRequiredError(f"others could read the token and all pods on the network: {address} needs TLS")
        limits = ServerLimits(names=(*options.names, address.host))
        async with serve_app(app, listener, stopping=stopping, limits=limits, tls=tls):
            yield bound_address


@asynccontextmanager
async def background_tasks(
    watcher: ManifestWatcher | None, queue: AdmissionQueue, probe: QueueProbe, notifier: Notifier
) -> AsyncIterator[None]:

    async def notify_watchdog(interval: float) -> None:
        """Notify systemd as long as decisions can be made; a restart does not help an agent that is read-only."""
        while queue.alive:
            with suppress(BusyError):  # nothing is proven
                if not queue.read_only:
                    await probe.passed()
                notifier.send("WATCHDOG=1")
            await asyncio.sleep(interval)

    tasks = []
    if watcher is not None:
        tasks.append(asyncio.ensure_future(watcher.run()))
    if notifier.watchdog is not None:
        tasks.append(asyncio.ensure_future(notify_watchdog(notifier.watchdog / 3)))
    try:
        yield
    finally:
        await cancel_tasks(tasks)
