"""The scheduling state: events in, instructions out.

    state = SchedulingState(cluster, facts)
    for instruction in state.handle(PodSeen(pod_facts), now=clock()):
        carry_out(instruction)

It decides what concerns more than one pod, for the extender and for the gate alike. Nothing here waits, reads a clock,
or sends requests: the same events at the same times, with the same facts, give the same instructions.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import PodStage
from alignup.placement.scheduling import events
from alignup.placement.scheduling.active_plan import ActivePlan
from alignup.placement.scheduling.assumptions import Assumptions
from alignup.placement.scheduling.bindings import Bindings
from alignup.placement.scheduling.claim_bindings import ClaimBindings
from alignup.placement.scheduling.claim_rules import ClaimSuitability
from alignup.placement.scheduling.common_parts import CommonParts
from alignup.placement.scheduling.events import Event
from alignup.placement.scheduling.facts import ClusterFacts, PodFacts, WaitingOrder, WaitState
from alignup.placement.scheduling.failed_events import FailedEvents
from alignup.placement.scheduling.followed_hosts import FollowedHosts
from alignup.placement.scheduling.gate import Gate
from alignup.placement.scheduling.instructions import (
    AnswerPreemption,
    AwaitRoom,
    ChangeGang,
    ChangeHosts,
    GiveNodeBack,
    Instruction,
    KeepNode,
)
from alignup.placement.scheduling.kept_nodes import KeptNodes
from alignup.placement.scheduling.known_schedulers import KnownSchedulers
from alignup.placement.scheduling.node_offers import NodeOffers
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.pod_steering import PodSteering
from alignup.placement.scheduling.preemption import Preemption
from alignup.placement.scheduling.snapshot import restore
from alignup.placement.scheduling.tentative_gangs import UNSEEN_SECONDS, TentativeGangs
from alignup.placement.scheduling.turn import Turn, run_all
from alignup.placement.scheduling.wake_ups import WakeUps

PLAN_STEP = "plan"  #: what failed, if it concerns the active plan
CHECK_SECONDS = 1.0  #: between searches for a node to keep, each for one pod


class SchedulingState:
    """The state of one process. Without *gate*, pods behind the gate are left alone."""

    def __init__(self, cluster: Cluster, facts: ClusterFacts, *, gate: GateOptions | None = None) -> None:
        self.cluster = cluster
        self._facts = facts
        self._turn = Turn()
        self.assumptions = Assumptions(cluster, facts, placed=self._placed, changed=self._hosts_changed)
        self.schedulers = KnownSchedulers(turn=self._turn)
        self._orders: dict[str, WaitingOrder] = {}  #: by uid, of pods without a node
        self.plan = self._build_plan()
        self.kept_nodes = KeptNodes(
            cluster,
            facts,
            is_placed=self.assumptions.__contains__,
            will_schedule=self.schedulers.know,
            turn=self._turn,
            plan=self.plan,
        )
        self.claims = ClaimSuitability(cluster, facts)
        parts = self._common_parts()
        self.gangs = TentativeGangs(
            parts,
            self.claims,
            schedulers=self.schedulers,
            kept_nodes=self.kept_nodes,
            order=self.order,
        )
        self.steering = PodSteering(parts, keeps_off=self.kept_nodes.keeps_off)
        self.preemption = Preemption(cluster, facts, refusals=self.refusals)
        self._claim_bindings = ClaimBindings(turn=self._turn)
        self.wake_ups = WakeUps(parts, gangs=self.gangs, refusals=self.refusals)
        self.offers = NodeOffers(
            parts,
            gangs=self.gangs,
            suitability=self.claims,
            claims=self._claim_bindings,
            preemption=self.preemption,
            wake_ups=self.wake_ups,
            refusals=self.refusals,
            kept_out=self.kept_nodes.kept_out,
        )
        self.bindings = Bindings(
            parts,
            gangs=self.gangs,
            steering=self.steering,
            claims=self._claim_bindings,
            on_end=self._binding_ended,
            refusal=self._refuse_binding,
        )
        hosts = FollowedHosts(
            parts, changed=self._hosts_reported, confirmed=self.steering.confirmed, repeat=self._repeat
        )
        self.gate: Gate | None = None
        self._unseen: dict[str, float] = {}  #: uids of pods that were asked about, and are not seen yet, and when
        self._failed = FailedEvents()
        self._checked = float("-inf")
        self._handlers = self._event_handlers(hosts)
        self._gate_handlers: dict[type[Event], Callable[[Any], object]] = {}
        if gate is not None:
            self.open_gate(gate)

    def _common_parts(self) -> CommonParts:
        return CommonParts(self.cluster, self._facts, self.assumptions, self._turn)

    def _build_plan(self) -> ActivePlan:
        return ActivePlan(
            self.cluster,
            self._facts,
            schedulers=self.schedulers,
            turn=self._turn,
            waiting=lambda: self._orders,
            on_change=self._plan_changed,
        )

    def _event_handlers(self, hosts: FollowedHosts) -> dict[type[Event], Callable[[Any], object]]:
        return {
            events.PodSeen: self._pod_seen,
            events.PodLeft: self._pod_left,
            events.PodBound: self._pod_bound,
            events.PodGone: self._pod_gone,
            events.NodeChanged: self._node_changed,
            events.NodesAsked: self._nodes_asked,
            events.BindingAsked: self.bindings.asked,
            events.PreemptionAsked: self._preemption_asked,
            events.BindingWritten: lambda event: self.bindings.written(event.request),
            events.BindingFailed: lambda event: self.bindings.failed(event.request, event.problem, lost=event.lost),
            events.ClaimsRead: self.bindings.claims_read,
            events.SteeringWritten: lambda event: self.steering.written(event.node, event.uid, event.generation),
            events.SteeringFailed: lambda event: self.steering.failed(event.node, event.uid, event.problem),
            events.SteeringObserved: self.steering.observed,
            events.StepFailed: self._step_failed,
            events.LargePodDecided: self._large_pod_decided,
            events.PlanActivated: self._plan_activated,
            events.PlanPaused: lambda event: self._follow_plan(self.plan.set_paused, event.plan, event.paused),
            events.PlanCancelled: lambda event: self._follow_plan(self.plan.cancelled, event.plan),
            events.PlanFactsRead: self.plan.facts_read,
            events.PlanWritten: lambda event: self._follow_plan(self.plan.written, event.plan, event.number),
            events.PlannedPodEvicted: lambda event: self._follow_plan(self.plan.evicted, event),
            events.WakeNext: lambda _event: self.wake_ups.wake_next(),
            events.HostReported: lambda event: hosts.reported(event.report),
            events.HostLost: lambda event: hosts.lost(event.node, event.pods),
            events.HostsChanged: lambda event: self._hosts_reported(event.hosts),
            events.PodsListed: lambda event: hosts.listed(event.pods),
            events.PodObserved: lambda event: self._pod_observed(hosts, event),
            events.PodRejected: lambda event: self._pod_rejected(hosts, event),
            events.PodPreempted: lambda event: hosts.preempted(event.pod, event.node),
            events.TimePassed: self._time_passed,
            events.ExtenderOpened: self._extender_opened,
            events.GateOpened: lambda event: self.open_gate(event.options),
            events.GateClosed: self._gate_closed,
            events.LeadershipBegan: self._leadership_began,
            events.LeadershipEnded: self._leadership_ended,
            events.StateRestored: lambda event: restore(self, event),
        }

    def build_gate(self, options: GateOptions) -> Gate:
        """Return a gate that knows of no pod."""
        parts, is_binding = self._common_parts(), self.bindings.step_of
        return Gate(parts, self.kept_nodes, self.steering, options=options, is_binding=is_binding)

    def open_gate(self, options: GateOptions) -> Gate:
        """Place the pods behind the gate as well, until the leadership ends."""
        if self.gate:
            self.gate.close()
        gate = self.gate = self.build_gate(options)
        self.kept_nodes.patience[WaitState.GATED] = options.patience
        self.schedulers.of_gate = options.schedulers
        self.plan.retry()
        self._gate_handlers = {
            events.ClaimsChanged: lambda event: gate.claims_changed(event.namespace),
            events.GroupChanged: lambda event: gate.group_changed(event.key),
            events.PodUnreadable: lambda event: gate.pod_unreadable(event.uid, event.problem),
            events.ReleaseWritten: lambda event: gate.release_written(event.uid),
            events.ReleaseFailed: lambda event: gate.release_failed(
                event.uid, event.outcome, event.message, event.current
            ),
            events.PlaceNext: lambda _event: gate.try_next(),
            events.ExplainNext: lambda _event: gate.explain_next(),
        }
        return gate

    def handle(self, event: Event, *, now: float) -> list[Instruction]:
        """Take note of an event, and return what is to be done."""
        self._turn.begin(now)
        self._run(event)
        self.plan.advance()
        done = self._turn.instructions
        for instruction in done:  # what follows inside may add more of them
            with self._turn.isolated("follow", type(instruction).__name__):
                self._follow(instruction)
        self._turn.instructions = []
        return done

    def _run(self, event: Event) -> None:
        """Let the parts of the state handle an event; after an error in one part, all other parts handle the event."""
        handler = self._handlers.get(type(event)) or (self._gate_handlers.get(type(event)) if self.gate else None)
        if handler is None:
            return
        try:
            handler(event)
        except Exception as error:  # noqa: BLE001 - see above
            self._repeat(event, error)
            if isinstance(event, events.BindingAsked):
                self.bindings.give_up(event.request)
        else:
            self._failed.handled(event)

    def _repeat(self, event: Event, error: Exception) -> None:
        """Report that an event could not be handled, and let it be handled again later, if it is no question."""
        retry = self._failed.add(event, now=self._turn.now)
        asks = isinstance(event, events.NodesAsked | events.PreemptionAsked | events.BindingAsked)
        self._turn.failed("answer" if asks else "follow", type(event).__name__, error, retry)

    def _follow(self, instruction: Instruction) -> None:
        """Take note of what parts of the state have decided."""
        match instruction:
            case KeepNode(node, pods=pods):
                for pod in pods:
                    self.wake_ups.await_room(pod.uid, (node,))
                if self.gate:
                    self.gate.queue.nodes_changed((node,), taken=True)
            case GiveNodeBack(node):
                self.wake_ups.hosts_changed((node,))
                if self.gate:
                    self.gate.queue.nodes_changed((node,))
            case AwaitRoom(uid, nodes):
                self.wake_ups.await_room(uid, nodes)
            case ChangeGang(key):
                self.bindings.gang_changed(key)
            case ChangeHosts(hosts, taken=False) if self.gate:
                self.gate.count_released(hosts)

    def next_check(self) -> float | None:
        """Return the seconds after which ``TimePassed`` is needed for bindings, although nothing has happened."""
        checks = (self.steering.next_check(), self.bindings.next_check())
        return min((seconds for seconds in checks if seconds is not None), default=None)

    # Events

    def _pod_seen(self, event: events.PodSeen) -> None:
        facts = event.facts
        self._orders[facts.uid] = facts.order
        self._unseen.pop(facts.uid, None)
        if facts.state in self.kept_nodes.patience and not facts.released_to:  # a released pod cannot go elsewhere
            self.kept_nodes.waits(facts)
        else:
            self._turn.emit(*self.kept_nodes.waits_no_longer(facts.uid))
        if facts.state is WaitState.UNSCHEDULABLE and not facts.released_to:
            self.wake_ups.seen(facts)
        self.plan.pod_seen(facts)
        if self.gate:
            self.gate.pod_seen(facts)

    def _pod_left(self, event: events.PodLeft) -> None:
        self._stop_waiting(event.uid)
        if self.gate:
            self.gate.pod_left(event.uid)

    def _pod_bound(self, event: events.PodBound) -> None:
        endings = (self._stop_waiting, self.wake_ups.forget, self.steering.forget, self.gangs.pod_bound)
        steps = [partial(step, event.uid) for step in endings]
        steps.append(partial(self._follow_plan, self.plan.pod_bound, event.uid, event.node))
        if self.gate:
            steps.append(partial(self.gate.pod_bound, event.uid, event.node, event.pod))
        run_all(*steps)

    def _pod_gone(self, event: events.PodGone) -> None:
        endings = (self._stop_waiting, self.kept_nodes.ended, self.wake_ups.forget, self._claim_bindings.forget)
        parts = (self.offers.forget, self.steering.pod_gone, self.gangs.pod_gone)
        steps = [partial(step, event.uid) for step in (*endings, *parts)]
        steps.append(partial(self._follow_plan, self.plan.pod_gone, event.uid))
        if self.gate:
            steps.append(partial(self.gate.pod_gone, event.uid, event.node))
        if not event.node:
            steps.append(partial(self.assumptions.forget, event.uid))
        run_all(*steps)

    def _stop_waiting(self, uid: str) -> None:
        self._orders.pop(uid, None)
        self._unseen.pop(uid, None)
        self._turn.emit(*self.kept_nodes.waits_no_longer(uid))

    def _node_changed(self, event: events.NodeChanged) -> None:
        self._turn.emit(*self.kept_nodes.node_changed(event.node))
        if event.gone:
            self.steering.node_gone(event.node)
        if self.gate:
            self.gate.node_changed(event.node, gone=event.gone)

    def _nodes_asked(self, event: events.NodesAsked) -> None:
        if event.facts.uid not in self._orders or event.facts.uid in self._unseen:
            self._orders[event.facts.uid] = event.facts.order
            self._unseen[event.facts.uid] = self._turn.now
        self.schedulers.asked(event.facts.scheduler)
        self.plan.pod_seen(event.facts)
        self._check()
        self.offers.asked(event)

    def _preemption_asked(self, event: events.PreemptionAsked) -> None:
        gang, pod = self.gangs.waiting_members(event.facts), event.facts.pod
        if gang is None:
            victims = self.preemption.victims(pod, event.proposed, event.budgets)
        else:
            victims = self.preemption.gang_victims(pod, gang, event.proposed, event.budgets) if gang else {}
        self._turn.emit(AnswerPreemption(victims))

    def _step_failed(self, event: events.StepFailed) -> None:
        if event.step == PLAN_STEP:
            self.plan.step_failed(event.uid, event.error)
        elif event.request:
            self.bindings.step_failed(event.request, event.error)
        elif self.gate:
            self.gate.step_failed(event.step, event.uid, event.error)
        else:
            self._turn.failed(event.step, event.uid, event.error)

    def _follow_plan(self, step: Callable[..., object], *arguments: object) -> None:
        """Let the active plan take note of something; if that fails, the plan ends, and nothing else."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - see above
            self.plan.fail_unexpectedly("follow", error)

    def _pod_observed(self, hosts: FollowedHosts, event: events.PodObserved) -> None:
        steps: list[Callable[[], object]] = [partial(hosts.observed, event.pod, event.node, event.stage)]
        if event.stage is not PodStage.ENDED:
            steps.append(partial(self._follow_plan, self.plan.pod_bound, event.pod.uid, event.node))
        run_all(*steps)

    def _pod_rejected(self, hosts: FollowedHosts, event: events.PodRejected) -> None:
        run_all(
            partial(hosts.rejected, event.uid, event.node, event.reason),
            partial(self._follow_plan, self.plan.pod_rejected, event.uid, event.node, event.reason),
        )

    def _plan_activated(self, event: events.PlanActivated) -> None:
        self.plan.activated(event)
        self._turn.emit(*self.kept_nodes.give_to_plan())

    def _large_pod_decided(self, event: events.LargePodDecided) -> None:
        self.wake_ups.large_pod_decided(event.uid)
        if self.gate:
            self.gate.large_pod_decided(event.uid)

    def _time_passed(self, _event: events.TimePassed) -> None:
        for event in self._failed.due(self._turn.now):
            self._run(event)
        for uid in [uid for uid, at in self._unseen.items() if self._turn.now - at >= UNSEEN_SECONDS]:
            self._stop_waiting(uid)
        gate = (self.gate,) if self.gate else ()
        parts = (self.gangs, self.steering, self.bindings, self.wake_ups, self.plan, *gate)
        for check in (self._check, *(part.check for part in parts)):
            with self._turn.isolated("follow", f"{type(check.__self__).__name__}.{check.__name__}"):
                check()

    def _leadership_began(self, _event: events.LeadershipBegan) -> None:
        self.bindings.leading = True
        for facts in self.kept_nodes.unschedulable():
            self.wake_ups.seen(facts)
        self.gangs.resume()
        self.steering.resume()

    def _extender_opened(self, event: events.ExtenderOpened) -> None:
        options = self.offers.options = event.options
        self.bindings.allow_unknown = self.preemption.allow_unknown = options.allow_unknown
        self.preemption.chooses = bool(options.chooses_victims)
        self.steering.use(options.steer_hold)
        self.schedulers.named = options.schedulers
        self.kept_nodes.namespaces.limit = options.patience_limit
        self.wake_ups.adopts = event.keeps_nodes
        if event.keeps_nodes:
            self.kept_nodes.patience[WaitState.UNSCHEDULABLE] = options.patience

    def _gate_closed(self, _event: events.GateClosed) -> None:
        self._turn.emit(*self.kept_nodes.clear())
        self._close_gate()

    def _leadership_ended(self, _event: events.LeadershipEnded) -> None:
        self._follow_plan(self.plan.close)
        self.bindings.close()
        self.steering.close()
        self.wake_ups.clear()
        self._turn.emit(*self.kept_nodes.clear())
        self.gangs.close()
        self._close_gate()

    def _close_gate(self) -> None:
        if self.gate:
            self.gate.close()
            self.gate = None
            self.kept_nodes.patience.pop(WaitState.GATED, None)

    # Questions

    def order(self, pod: Pod) -> WaitingOrder:
        """Return the waiting order of a pod; an unknown pod comes after all other pods of its priority."""
        return self._orders.get(pod.uid) or (-(pod.priority or 0), "~", pod.namespace, pod.name)

    def keeps_out(self, node: str, pod: Pod) -> bool:
        """Return whether *node* is kept for a pod that comes before *pod*, and that would not fit beside *pod*."""
        return self.kept_nodes.keeps_out(node, pod, self.order(pod))

    def refusals(self, pod: Pod) -> dict[str, str]:
        """Return the nodes that are kept from a pod, and why."""
        return self.kept_nodes.refusals(pod, self.order(pod))

    @property
    def waiting_for_claims(self) -> Collection[str]:
        """The uids of released pods that wait until their claims have devices."""
        return self.gate.claims.waiting if self.gate else ()

    def _refuse_binding(self, facts: PodFacts, node: str) -> str:
        """Return why the active plan keeps *node* from a pod that is about to be bound; empty: it does not."""
        self.plan.pod_seen(facts)
        return self.plan.describe(facts.pod) if self.plan.keeps_out(node, facts.pod) else ""

    # Changes inside

    def _binding_ended(self, uid: str, problem: str) -> None:
        self.offers.forget(uid)
        if not problem:
            self.wake_ups.forget(uid)

    def _hosts_reported(self, hosts: Collection[str]) -> None:
        """Take note that what hosts hold has changed, not by what was assumed here."""
        self._turn.emit(ChangeHosts(hosts))
        self.plan.hosts_changed()
        self.gangs.hosts_changed()
        self.wake_ups.hosts_changed(hosts)
        if self.gate:
            self.gate.queue.nodes_changed(hosts)

    def _plan_changed(self, nodes: Collection[str]) -> None:
        """Note that the active plan now lets pods have *nodes* that it kept from these pods before."""
        self.gangs.hosts_changed()
        self.wake_ups.hosts_changed(nodes)
        if self.gate:
            self.gate.queue.nodes_changed(nodes)

    def _placed(self, pod: Pod, nodes: Collection[str]) -> None:
        if nodes:
            self.kept_nodes.placed(pod, nodes, self.order(pod))
        else:
            self.kept_nodes.ended(pod.uid)

    def _hosts_changed(self, hosts: Iterable[str], taken: bool) -> None:  # noqa: FBT001 - see ChangedListener
        names = tuple(hosts)
        if names:
            self.gangs.hosts_changed()
            if not taken:
                self.wake_ups.hosts_changed(names)
            if self.gate:
                self.gate.queue.nodes_changed(names, taken=taken)
            self._turn.emit(ChangeHosts(names, taken))

    def _check(self) -> None:
        """Look from time to time for a pod to keep a node for, and for nodes that need not be kept any more."""
        now, kept_nodes = self._turn.now, self.kept_nodes
        if now - self._checked >= CHECK_SECONDS and kept_nodes.waiting:
            self._checked = now
            self._turn.emit(*kept_nodes.check(now))
