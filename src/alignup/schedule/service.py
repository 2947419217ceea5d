"""The cluster service: the live cluster, the scheduler extender, leader election, and the HTTP endpoints."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from alignup.align.errors import ParseError, PodError
from alignup.align.workload import Pod
from alignup.kubernetes.api import Access, ApiClient, LeaderElection
from alignup.kubernetes.api.errors import ApiError
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.scheduling.claim_rules import choose_steering
from alignup.placement.scheduling.events import (
    BindingAsked,
    ExtenderOpened,
    LeadershipBegan,
    LeadershipEnded,
    SteeringWritten,
    TimePassed,
)
from alignup.placement.scheduling.instructions import WriteEvent
from alignup.placement.scheduling.options import ExtenderOptions
from alignup.placement.scheduling.scheduling_state import CHECK_SECONDS
from alignup.placement.steered import STEERED_ANNOTATION, count_markers
from alignup.placement.verdict import Verdict, defect
from alignup.schedule.cluster_snapshot import incomplete_release
from alignup.schedule.extender.bind import BindVerb
from alignup.schedule.extender.filter import FilterVerb
from alignup.schedule.extender.messages import BindingArgs, ExtenderArgs, PreemptionArgs, TooLargeError, read_message
from alignup.schedule.extender.preempt import CHOOSES_VICTIMS, respond_victims
from alignup.schedule.extender.prioritize import respond_scores
from alignup.schedule.extender.wake_up import WakeUpWriter
from alignup.schedule.kueue_checks import AdmissionChecks
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.live_cluster_options import LiveClusterOptions
from alignup.schedule.metrics import ScheduleMetrics
from alignup.schedule.move_proposals import MoveProposals
from alignup.schedule.move_searches import MoveSearches
from alignup.schedule.object_events import ObjectEvents
from alignup.schedule.pages import ClusterPages, page_routes
from alignup.schedule.plan_controller import PlanController
from alignup.schedule.pod_answers import (
    MAX_CLAIM_ROWS,
    NodeAnswer,
    answer_row,
    answers_document,
    failed_row,
    placement_documents,
)
from alignup.schedule.pod_states import summarize_pod
from alignup.schedule.rejections import RejectionWriter, recorded_verdict, rejection_text
from alignup.schedule.steering_writer import SteeringWriter
from alignup.schedule.step_guard import ServiceStep
from alignup.web.api_operations import receive_body
from alignup.web.asgi_server import ServerLimits, kubernetes_limits, run_until_signal, serve_app
from alignup.web.authentication import AccessRules, count_authenticated
from alignup.web.metrics import health_app, health_routes
from alignup.web.responses import (
    JSON,
    RETRY_SOON,
    NotReadyError,
    ProblemError,
    internal_error,
    json_response,
    make_app,
    wrong_method,
)
from alignup.web.sockets import ServerCertificate, read_token, tcp_socket

SETTLE_SECONDS = 1.0  #: in which a new leader sees the last bindings of the one before
END_SECONDS = 10.0  #: for bindings that are being written when the service ends
EXTENDER = "/v1/extender"  #: the path that kube-scheduler's urlPrefix ends with
VERBS = ("filter", "prioritize", "bind", "preempt")
MAX_BODY = 64 << 20  #: bytes; whole Node objects of 5,000 nodes
BODY_SECONDS = 30.0
_OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})  #: that probes read without a token

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
    token_file: Path | None = None  #: with the token that clients need
    #: whether clients need neither certificate nor token; otherwise without both, only local ones of the same user
    any_client: bool = False
    names: tuple[str, ...] = ()  #: by which clients call this program over plain HTTP, beside those of its machine
    lease: LeaseOptions | None = None  #: ``None``: this is the only process
    kueue: bool = False  #: whether it is the controller of Kueue's admission checks
    plans: bool = False  #: whether it carries out plans
    serves_extender: bool = True  #: whether schedulers are answered; else only pods behind the gate are placed
    extender: ExtenderOptions = field(default_factory=ExtenderOptions)
    live: LiveClusterOptions = field(default_factory=LiveClusterOptions)


class ScheduleService:
    """The service of one process, which answers schedulers while it leads."""

    def __init__(  # noqa: PLR0913 - the parts of the service
        self,
        client: ApiClient,
        *,
        extender: ExtenderOptions | None = None,
        live: LiveClusterOptions | None = None,
        lease: LeaseOptions | None = None,
        kueue: bool = False,
        plans: bool = False,
        serves_extender: bool = True,
    ) -> None:
        self._options = extender or ExtenderOptions()
        self.client = client
        self.metrics = ScheduleMetrics()
        self.live = LiveCluster(client, options=live, metrics=self.metrics)
        self.live.schedule(ExtenderOpened(self._options, keeps_nodes=serves_extender))
        self.live.on_instruction(self._write_event, WriteEvent)
        self._events = ObjectEvents(client, "alignup-schedule", self.live.guard.reporting)
        self.searches = MoveSearches(client, self.live)
        self.proposals = MoveProposals(client, self.live, self.searches, self._events)
        self.steering = SteeringWriter(client, self.live, hold=self._options.steer_hold)
        self.filter = FilterVerb(self.live)
        self.bind = BindVerb(client, self.live, self.filter.records)
        self._wake_up = WakeUpWriter(client, self.live)
        #: run beside the extender, until the service ends
        self.tasks: list[Task] = [self.live.steering_instructions.run]
        #: run while this process leads
        self.leader_tasks: list[Task] = [
            self._pass_time,
            RejectionWriter(client, self.live).run,
            self._events.run,
            self.proposals.run,
        ]
        self._serves_extender = serves_extender
        if serves_extender:
            self.leader_tasks.append(self._wake_up.run)
        if kueue:
            checks = AdmissionChecks(client, self.live, self.metrics)
            self.tasks.append(checks.follow)
            self.leader_tasks.append(checks.run)
        self.plans = PlanController(client, self.live) if plans else None
        if self.plans is not None:
            self.tasks.append(self.plans.follow)
            self.leader_tasks.append(self.plans.run)
        self.leading = False
        self._election = None
        if lease is not None:
            name, namespace, identity = lease.name, lease.namespace, lease.identity
            self._election = LeaderElection(client, name=name, namespace=namespace, identity=identity)
        self.metrics.collect_from(self.numbers)

    async def run(self) -> None:
        """Follow the cluster, and lead when this process is chosen, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for run in (*self.tasks, self.live.run):
                tasks.create_task(run())
            await self.live.ready.wait()  # before it can lead: a leader has to answer at once
            await self.live.steering_instructions.wait_tried()
            if self._options.chooses_victims is None:
                with suppress(ApiError):  # unreachable: assume no
                    chooses = (await self.client.version()).number >= CHOOSES_VICTIMS
                    options = replace(self._options, chooses_victims=chooses)
                    self.live.schedule(ExtenderOpened(options, keeps_nodes=self._serves_extender))
            _log.info("ready", nodes=len(self.live.nodes.objects), hosts=len(self.live.cluster.hosts))
            if self._election is None:
                tasks.create_task(self._lead())
            else:
                tasks.create_task(self._election.run(self._lead))

    async def _lead(self) -> None:
        if self._election is not None:
            await self.client.timing.sleep(SETTLE_SECONDS)
        self.live.schedule(LeadershipBegan())
        if self.plans is not None:
            with self.live.guard.guarded(ServiceStep.PLAN, "resume"):
                await self.plans.resume()  # before others get the room of a plan
        self.leading = True
        _log.info("leading")
        try:
            async with asyncio.TaskGroup() as tasks:
                for run in self.leader_tasks:
                    tasks.create_task(self.live.guard.keep_running(run.__qualname__, run))
        finally:
            self.leading = False
            self.live.schedule(LeadershipEnded())
            if self.plans is not None:
                await self.plans.stop()
            with suppress(TimeoutError):  # the next leader must not begin before the last binding is written
                async with asyncio.timeout(END_SECONDS):
                    await self.bind.idle.wait()

    async def _pass_time(self) -> None:
        """Let the scheduling state know of the time, until cancelled."""
        sooner = asyncio.Event()
        self.live.on_event(lambda event: sooner.set() if isinstance(event, BindingAsked | SteeringWritten) else None)
        while True:
            seconds = self.live.scheduling.next_check()
            sooner.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS if seconds is None else min(seconds, CHECK_SECONDS)):
                    await sooner.wait()
                    continue
            self.live.schedule(TimePassed())

    def _write_event(self, event: WriteEvent) -> None:
        pod = None if event.gate else self.live.find_by_uid(event.uid)
        if pod is not None:
            self._events.note(pod, event.reason, event.message, same=event.same)

    # Answers to HTTP requests

    def problems(self) -> tuple[str, ...]:
        if self.live.problems or self.leading:
            return self.live.problems
        return (self._standby(),)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What health checks tell although answers are right."""
        return (*self.live.warnings, *(self.plans.warnings if self.plans else ()))

    async def respond(self, verb: str, body: bytes) -> bytes:
        if not self._serves_extender:
            raise ProblemError(404, "This service answers no schedulers: it was started with --no-extender.")
        if not self.leading:
            raise NotReadyError(self._standby())
        answer: object
        if verb == "filter":
            answer = await self.filter.respond(ExtenderArgs.read(body))
        elif verb == "prioritize":
            answer = await respond_scores(self.live, ExtenderArgs.read(body))
        elif verb == "preempt":
            answer = await respond_victims(self.client, self.live, PreemptionArgs.read(body))
        else:
            answer = await self.bind.respond(read_message(body, BindingArgs))
        return msgspec.json.encode(answer)

    async def explain(self, namespace: str, name: str, node: str) -> Mapping[str, Any] | None:
        pod = self.live.find_pod(namespace, name)
        if pod is None:
            return None
        decoded_pod = self.live.read(pod)
        await self.live.large_pods.decide(decoded_pod)
        verdicts = self.live.feasible(decoded_pod, (node,) if node else None)
        verdicts = {name: self._recorded_verdict(pod, name, verdict) for name, verdict in verdicts.items()}
        document = answers_document(pod, decoded_pod, verdicts, partial(self._make_row, pod, decoded_pod))
        if release := incomplete_release(self.live.cluster):
            document |= release.date_document()
        if decoded_pod.uses_claims and (warnings := self.live.claims.warnings):
            document["claimProblems"] = list(warnings)
        document["state"] = summarize_pod(pod).to_document()
        if text := rejection_text(pod):
            document["rejection"] = {"node": pod.spec.node_name, "reason": text}
        if proposal := self.proposals.find(pod.metadata.uid):
            document["proposal"] = proposal
        if record := self.filter.records.get(pod.metadata.uid):
            document["lastFilter"] = record.document()
        return document

    def _recorded_verdict(self, pod: ApiPod, node: str, verdict: Verdict) -> Verdict:
        try:
            return recorded_verdict(pod, node, verdict)
        except Exception as error:  # noqa: BLE001 - whatever one node raises, the others are explained
            self.live.failed_decisions.note(node, error)
            return defect(error)

    def _make_row(self, api_pod: ApiPod, pod: Pod, answer: NodeAnswer, position: int) -> dict[str, Any]:
        """Return the row of a node in an explanation, with claims and steering on the best nodes."""
        node = answer.node
        try:
            row = answer_row(answer, pod)
            if pod.uses_claims and position < MAX_CLAIM_ROWS:
                row["claims"] = self._explain_claims(pod, node, answer.verdict)
            if count_markers(pod) and position < MAX_CLAIM_ROWS:
                self._explain_steering(api_pod, pod, row)
            if reason := self.live.scheduling.kept_nodes.describe(node):
                row["kept"] = reason
        except Exception as error:  # noqa: BLE001
            self.live.failed_decisions.note(node, error)
            return failed_row(node, error)
        return row

    def _explain_steering(self, api_pod: ApiPod, pod: Pod, row: dict[str, Any]) -> None:
        """Add to the answer of a node where a pod with markers was or would be steered to."""
        node, record = row["node"], self.live.cluster.record(row["node"])
        if record is not None and record.holds(pod.uid):
            steering = api_pod.metadata.annotations.get(STEERED_ANNOTATION, "")
            row |= {"steering": steering, "placements": placement_documents(self.live.verdict(pod, node))}
        elif "placements" in row:
            options = self.live.cluster.steered(pod, node)
            choice = choose_steering(options, pod, lambda verdict: self.live.explain_claims(pod, node, verdict))
            if choice is not None:
                row |= {"steering": str(choice), "placements": placement_documents(choice.verdict)}

    def _explain_claims(self, pod: Pod, node: str, verdict: Verdict) -> dict[str, Any]:
        fit = self.live.claim_fit(pod, node)
        explained_claims = next(iter(self.live.explain_claims(pod, node, verdict)), ())
        claims = [claim.to_document() for claim in explained_claims]
        return {"possible": fit.possible, "certain": fit.certain, "reason": fit.reason, "claims": claims}

    def _standby(self) -> str:
        leader = self._election.leader if self._election is not None else ""
        if leader and self._election is not None and leader != self._election.identity:
            return f"this is a standby: {leader} leads"
        return "this is a standby: there is no leader yet"

    def numbers(self) -> dict[str, tuple[str, float]]:
        cluster, gangs, kept_nodes = self.live.cluster, self.live.scheduling.gangs, self.live.scheduling.kept_nodes
        return {
            "alignup_schedule_leading": ("Whether this process leads.", float(self.leading)),
            "alignup_schedule_nodes": ("Nodes of the cluster.", len(self.live.nodes.objects)),
            "alignup_schedule_known_nodes": ("Nodes whose state is known.", len(cluster.hosts)),
            "alignup_schedule_unreadable_objects": ("Objects that cannot be read.", len(self.live.unreadable)),
            "alignup_schedule_failed_decisions_total": (
                "Verdicts that a defect prevented.",
                self.live.failed_decisions.count,
            ),
            "alignup_schedule_claims_followed": (
                "Whether ResourceClaims, slices and device classes are known.",
                float(self.live.claims.known),
            ),
            "alignup_schedule_claim_devices": ("Devices of ResourceSlices.", self.live.claims.devices),
            "alignup_schedule_distinct_states": ("Distinct states of nodes.", cluster.distinct_states),
            "alignup_schedule_waiting_pods": ("Rejected pods that wait for room.", len(self.live.scheduling.wake_ups)),
            "alignup_schedule_tentative_gangs": ("Gangs whose places are kept until all are bound.", len(gangs)),
            "alignup_schedule_kept_nodes": (
                "Nodes kept for pods that waited long.",
                len(kept_nodes),
            ),
            "alignup_schedule_woken_pods_total": ("Waiting pods that got room.", self._wake_up.woken),
            "alignup_schedule_kept_verdicts_total": ("Verdicts that were used again.", cluster.kept_verdicts),
            "alignup_schedule_renewed_verdicts_total": ("Verdicts of changed nodes.", cluster.renewed_verdicts),
        }


class _AccessCheck:
    """Refuses requests of clients without access, with the response of *refuse*, and leaves all others to *app*."""

    def __init__(self, app: ASGIApp, access: AccessRules, refuse: Callable[[Request, ProblemError], Response]) -> None:
        self._app = app
        self._access = access
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        is_open = self._access.everyone or path in _OPEN_PATHS or path.startswith("/static/")
        if is_open or self._access.allows(Request(scope)):
            await self._app(scope, receive, send)
        else:
            await self._refuse(Request(scope), self._refusal())(scope, receive, send)

    def _refusal(self) -> ProblemError:
        detail = "Only root and the user of this program are served here. Others need a token, which it was not given."
        if self._access.token is not None:
            detail = "The request needs the token: Authorization: Bearer TOKEN, or the password of HTTP Basic."
        # Browsers ask for the password then.
        return ProblemError(401, detail, headers={"WWW-Authenticate": 'Basic realm="alignup"'})


def schedule_app(
    service: ScheduleService,
    *,
    stopping: asyncio.Event | None = None,
    max_body: int = MAX_BODY,
    access: AccessRules | None = None,
) -> ASGIApp:
    """Build the application for schedulers and users; event streams end when *stopping* is set.

    *access* says who may use everything but probes and metrics; ``None``: who can connect.
    """

    async def explain(request: Request) -> Response:
        namespace, pod = request.path_params["namespace"], request.path_params["pod"]
        try:
            answers = await service.explain(namespace, pod, request.query_params.get("node", ""))
        except PodError as error:
            return ProblemError(422, f"Invalid pod: {error}", errors=error.problems).response()
        if answers is None:
            return ProblemError(404, f"There is no pod {namespace}/{pod}.").response()
        return json_response(answers)

    server = service.client.access.server
    pages = ClusterPages(
        service.live, service.problems, service.searches, service.proposals.find, subject=f"cluster at {server}"
    )
    routes = [
        *(_verb_route(service, verb, max_body) for verb in VERBS),
        Route("/v1/explain/{namespace}/{pod}", explain),
        *health_routes(service.metrics.registry, readiness=service.problems, warnings=lambda: service.warnings),
        *page_routes(pages, stopping=stopping or asyncio.Event()),
    ]
    app = make_app(routes, {404: pages.missing, 405: wrong_method})
    return _AccessCheck(app, access or AccessRules(everyone=True), pages.refuse)


def _verb_route(service: ScheduleService, verb: str, max_body: int) -> Route:
    async def respond(request: Request) -> Response:
        start = time.perf_counter()
        try:
            response = await _respond(service, verb, request, max_body)
        except Exception as error:  # noqa: BLE001 - a defect must not end the connection without an answer
            _log.error("request failed", method="POST", path=request.url.path, exc_info=error)
            response = await internal_error(request, error)
        service.metrics.request(verb, response.status_code, time.perf_counter() - start)
        return response

    return Route(f"{EXTENDER}/{verb}", respond, methods=["POST"])


async def _respond(service: ScheduleService, verb: str, request: Request, max_body: int) -> Response:
    """Return the answer to a scheduler, or the response to a request that fails."""
    try:
        count_authenticated(request)
        body = await receive_body(request, limit=max_body, seconds=BODY_SECONDS, types=(JSON,), expected=JSON)
        return Response(await service.respond(verb, body), media_type=JSON)
    except ParseError as error:
        _log.warning("bad request of a scheduler", verb=verb, problem=str(error))
        return ProblemError(413 if isinstance(error, TooLargeError) else 400, str(error)).response()
    except NotReadyError as error:
        return ProblemError(503, str(error), headers=RETRY_SOON).response()
    except ProblemError as problem:
        return problem.response()


@asynccontextmanager
async def open_service(access: Access, options: ScheduleOptions) -> AsyncIterator[ScheduleService]:
    """Listen, and yield the service, which is still to be run; ``ListenError`` if it cannot listen."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(access))
        service = ScheduleService(
            client,
            extender=options.extender,
            live=options.live,
            lease=options.lease,
            kueue=options.kueue,
            plans=options.plans,
            serves_extender=options.serves_extender,
        )
        tls = None
        if options.certificate is not None and options.private_key is not None:
            authority = options.client_authority
            tls = ServerCertificate(options.certificate, options.private_key, client_authority=authority).context
        token = None if options.token_file is None else read_token(options.token_file)
        everyone = token is None and (options.any_client or options.client_authority is not None)
        rules = AccessRules(everyone=everyone, token=token, same_user=token is None)
        stopping = asyncio.Event()
        limits = ServerLimits(names=(*options.names, options.listen[0]))
        listener = stack.enter_context(tcp_socket(options.listen[1], options.listen[0]))
        app = schedule_app(service, stopping=stopping, access=rules)
        called = kubernetes_limits(limits.names)
        await stack.enter_async_context(serve_app(app, listener, stopping=stopping, limits=called, tls=tls))
        if options.health is not None:
            registry = service.metrics.registry
            probe_app = health_app(registry, readiness=service.problems, warnings=lambda: service.warnings)
            probes = stack.enter_context(tcp_socket(options.health[1], options.health[0]))
            await stack.enter_async_context(serve_app(probe_app, probes, stopping=stopping, limits=limits))
        _log.info("listening", at="{}:{}".format(*listener.getsockname()[:2]))
        yield service


async def schedule(access: Access, options: ScheduleOptions) -> None:
    """Run the service until SIGTERM or SIGINT; ``ListenError`` if it cannot listen."""
    async with open_service(access, options) as service:
        await run_until_signal(service.run())
