"""The cluster service: the live cluster, the scheduler extender, leader election, and the HTTP endpoints together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog

from alignup.align.errors import PodError
from alignup.kubernetes.api import Access, ApiClient, LeaderElection, Timing
from alignup.kubernetes.api.errors import ApiError
from alignup.schedule.app import schedule_app
from alignup.schedule.bind import Binder
from alignup.schedule.extender import Extender, ExtenderOptions
from alignup.schedule.extender_messages import (
    BindingArgs,
    ExtenderArgs,
    MetaVictims,
    PreemptionArgs,
    PreemptionResult,
    read_message,
)
from alignup.schedule.live_cluster import LiveCluster, LiveClusterOptions
from alignup.schedule.metrics import PrometheusScheduleMetrics
from alignup.schedule.page_backend import LivePages
from alignup.schedule.pod_answers import answers_document
from alignup.schedule.preempt import CHOOSES_VICTIMS, POD_DISRUPTION_BUDGETS, Preemption
from alignup.schedule.wake_up import WakeUp
from alignup.web.asgi_server import run_until_signal, serve_app
from alignup.web.metrics import health_app
from alignup.web.responses import NotReadyError
from alignup.web.sockets import ServerCertificate, tcp_socket

SETTLE_SECONDS = 1.0  #: in which a new leader sees the last bindings of the one before
END_SECONDS = 10.0  #: for bindings that are being written when the service ends

_log = structlog.get_logger()

Address = tuple[str, int]  #: host and port
Task = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    namespace: str
    identity: str  #: different for every process
    name: str = "alignup-schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    listen: Address  #: of the extender and of explanations
    health: Address | None = None  #: of probes and metrics, without TLS
    certificate: Path | None = None
    private_key: Path | None = None
    client_authority: Path | None = None  #: of the certificates that clients need; ``None``: none
    lease: LeaseOptions | None = None  #: ``None``: this is the only process
    extender: ExtenderOptions = field(default_factory=ExtenderOptions)
    live: LiveClusterOptions = field(default_factory=LiveClusterOptions)


class ScheduleService:
    """The service of one process, which answers schedulers while it leads."""

    def __init__(
        self,
        client: ApiClient,
        metrics: PrometheusScheduleMetrics,
        *,
        extender: ExtenderOptions | None = None,
        live: LiveClusterOptions | None = None,
        lease: LeaseOptions | None = None,
    ) -> None:
        options = extender or ExtenderOptions()
        allow_unknown = options.allow_unknown
        self.client, self.metrics = client, metrics
        self.live = LiveCluster(client, options=live, metrics=metrics)
        self._binder = Binder(client, self.live, allow_unknown=allow_unknown, leads=lambda: self.leading)
        self._wake_up = WakeUp(client, self.live)
        self.preemption = Preemption(self.live, chooses=bool(options.chooses_victims), allow_unknown=allow_unknown)
        self.extender = Extender(self.live, self._binder, self.preemption, self._wake_up, options)
        self.tasks: list[Task] = []  #: run beside the extender, until the service ends
        self.leader_tasks: list[Task] = [self._wake_up.run]  #: run while this process leads
        self.leading = False
        self._election = None
        if lease is not None:
            name, namespace, identity = lease.name, lease.namespace, lease.identity
            self._election = LeaderElection(client, name=name, namespace=namespace, identity=identity)
        metrics.collect_from(self.numbers)

    async def run(self) -> None:
        """Follow the cluster, and lead when this process is chosen, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for run in (*self.tasks, self.live.run):
                tasks.create_task(run())
            await self.live.wait_ready()  # before it can lead: a leader has to answer at once
            if self.extender.options.chooses_victims is None:
                with suppress(ApiError):  # unreachable: assume no
                    self.preemption.chooses = (await self.client.version()).number >= CHOOSES_VICTIMS
            _log.info("ready", nodes=len(self.live.nodes.objects), hosts=len(self.live.cluster.hosts))
            if self._election is None:
                tasks.create_task(self._lead())
            else:
                tasks.create_task(self._election.run(self._lead))

    async def _lead(self) -> None:
        if self._election is not None:
            await self.client.timing.sleep(SETTLE_SECONDS)
        self.leading = True
        _log.info("leading")
        try:
            async with asyncio.TaskGroup() as tasks:
                for run in self.leader_tasks:
                    tasks.create_task(run())
        finally:
            self.leading = False
            with suppress(TimeoutError):  # the next leader must not begin before the last binding is written
                async with asyncio.timeout(END_SECONDS):
                    await self._binder.wait_idle()

    # The backend of the HTTP endpoints

    def problems(self) -> tuple[str, ...]:
        if self.live.problems or self.leading:
            return self.live.problems
        return (self._standby(),)

    async def respond(self, verb: str, body: bytes) -> bytes:
        if not self.leading:
            raise NotReadyError(self._standby())
        answer: object
        if verb == "filter":
            answer = self.extender.filter(read_message(body, ExtenderArgs))
        elif verb == "prioritize":
            answer = self.extender.prioritize(read_message(body, ExtenderArgs))
        elif verb == "preempt":
            answer = await self._preempt(read_message(body, PreemptionArgs))
        else:
            answer = await self.extender.bind(read_message(body, BindingArgs))
        return msgspec.json.encode(answer)

    async def _preempt(self, args: PreemptionArgs) -> PreemptionResult:
        """Choose the pods to evict; none while it is unknown what nodes have, or what budgets allow."""
        name = args.pod.metadata.full_name
        victims: dict[str, MetaVictims] = {}
        try:
            pod = self.live.read(args.pod)
            if not self.live.problems:
                budgets = (await self.client.list(POD_DISRUPTION_BUDGETS)).items
                victims = self.preemption.victims(pod, args.victims, budgets)
        except (PodError, ApiError) as error:
            _log.warning("preempt", pod=name, problem=str(error))
        _log.info("preempt", pod=name, nodes=len(args.victims), answered=len(victims))
        return PreemptionResult(victims)

    def explain(self, namespace: str, name: str, node: str) -> Mapping[str, Any] | None:
        pod = self.live.find_pod(namespace, name)
        if pod is None:
            return None
        read = self.live.read(pod)
        document = answers_document(pod, read, self.live.feasible(read, (node,) if node else None))
        if record := self.extender.record(pod.metadata.uid):
            document["lastFilter"] = record.document()
        return document

    def _standby(self) -> str:
        leader = self._election.leader if self._election is not None else ""
        if leader and self._election is not None and leader != self._election.identity:
            return f"this is a standby: {leader} leads"
        return "this is a standby: there is no leader yet"

    def numbers(self) -> dict[str, tuple[str, float]]:
        cluster = self.live.cluster
        return {
            "alignup_schedule_leading": ("Whether this process leads.", float(self.leading)),
            "alignup_schedule_nodes": ("Nodes of the cluster.", len(self.live.nodes.objects)),
            "alignup_schedule_known_nodes": ("Nodes whose state is known.", len(cluster.hosts)),
            "alignup_schedule_distinct_states": ("Distinct states of nodes.", cluster.distinct_states),
            "alignup_schedule_waiting_pods": ("Rejected pods that wait for room.", self._wake_up.waiting),
            "alignup_schedule_woken_pods_total": ("Waiting pods that got room.", self._wake_up.woken),
            "alignup_schedule_kept_verdicts_total": ("Verdicts that were used again.", cluster.kept_verdicts),
            "alignup_schedule_renewed_verdicts_total": ("Verdicts of changed nodes.", cluster.renewed_verdicts),
        }


@asynccontextmanager
async def open_service(
    access: Access, options: ScheduleOptions, *, timing: Timing | None = None
) -> AsyncIterator[ScheduleService]:
    """Listen, and yield the service, which is still to be run; ``ListenError`` if it cannot listen."""
    metrics = PrometheusScheduleMetrics()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(access, timing=timing))
        service = ScheduleService(client, metrics, extender=options.extender, live=options.live, lease=options.lease)
        tls = None
        if options.certificate is not None and options.private_key is not None:
            authority = options.client_authority
            tls = ServerCertificate(options.certificate, options.private_key, client_authority=authority).context
        stopping = asyncio.Event()
        listener = stack.enter_context(tcp_socket(options.listen[1], options.listen[0]))
        pages = LivePages(service.live, service.problems)
        app = schedule_app(service, metrics, pages=pages, stopping=stopping)
        await stack.enter_async_context(serve_app(app, listener, stopping=stopping, tls=tls))
        if options.health is not None:
            probe_app = health_app(metrics.registry, readiness=service.problems)
            probes = stack.enter_context(tcp_socket(options.health[1], options.health[0]))
            await stack.enter_async_context(serve_app(probe_app, probes, stopping=stopping))
        _log.info("listening", at="{}:{}".format(*listener.getsockname()[:2]))
        yield service


async def schedule(access: Access, options: ScheduleOptions, *, timing: Timing | None = None) -> None:
    """Run the service until SIGTERM or SIGINT; ``ListenError`` if it cannot listen."""
    async with open_service(access, options, timing=timing) as service:
        await run_until_signal(service.run())
