"""A scheduling state for tests: simulated hosts, plain facts, and time that passes when a test says so."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from alignup.align.fit import NodeAllocatable, UsedResources, insufficient_resources
from alignup.align.host import Host
from alignup.align.workload import Pod, demand
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import PodStage
from alignup.placement.scheduling import events
from alignup.placement.scheduling.facts import ClaimFit, GangFacts, GroupKey, PodFacts, WaitState
from alignup.placement.scheduling.gate import Gate
from alignup.placement.scheduling.instructions import Instruction
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.scheduling_state import SchedulingState
from alignup.placement.verdict import Verdict, unknown
from tests.align.hosts import GPU, NIC
from tests.placement.clusters import report

ALLOCATABLE = NodeAllocatable(milli_cpu=7000, memory=31 << 30, ephemeral_storage=0, pods=110, scalars={GPU: 2, NIC: 2})
SCHEDULER = "default-scheduler"


class PlainFacts:
    """A cluster in which every pod may use every node, unless a test says otherwise."""

    claims_known = True
    approximate_nodes = ()

    def __init__(self) -> None:
        self.pods: dict[str, PodFacts] = {}  #: without a node
        self.bound: dict[str, tuple[Pod, str]] = {}  #: uid → pod and node
        self.nodes: dict[str, NodeAllocatable] = {}
        self.forbidden: dict[str, set[str]] = {}  #: uid → nodes that its selectors do not allow
        self.minimums: dict[GroupKey, int] = {}
        self.group_of: dict[str, GroupKey] = {}  #: by uid, of bound pods, too

    def pod(self, uid: str) -> PodFacts | None:
        return self.pods.get(uid)

    def readable_pod(self, uid: str) -> PodFacts:
        return self.pods[uid]

    @property
    def groups(self) -> set[GroupKey]:
        return set(self.group_of.values())

    def gang(self, key: GroupKey) -> GangFacts:
        members = [uid for uid, group in self.group_of.items() if group == key]
        waiting = [uid for uid in members if uid in self.pods]
        gated = [uid for uid in waiting if self.pods[uid].state in {WaitState.GATED, WaitState.OTHER_GATES}]
        bound = {uid: self.bound[uid][1] for uid in members if uid in self.bound}
        others = [uid for uid in waiting if uid not in gated]
        schedulers = {uid: self.pods[uid].scheduler for uid in others}
        return GangFacts(self.minimums.get(key, len(members)), bound, others, gated, list(bound), schedulers=schedulers)

    def allowed(self, facts: PodFacts) -> set[str]:
        return self.nodes.keys() - self.forbidden.get(facts.uid, set())

    def allows(self, facts: PodFacts, node: str) -> bool:
        return node in self.allowed(facts)

    def excluded(self, facts: PodFacts) -> Mapping[str, str]:
        return dict.fromkeys(self.forbidden.get(facts.uid, ()), "node selector")

    def insufficient(self, node: str, pod: Pod, *, beside: Sequence[Pod] = (), empty: bool = False) -> Sequence[str]:
        if node not in self.nodes:
            return ("pods",)
        used = UsedResources()
        bound = () if empty else [other for other, host in self.bound.values() if host == node]
        for other in (*bound, *beside):
            used = used.plus(demand.fit_used(other))
        shortages = insufficient_resources(demand.fit_request(pod), usage=used, allocatable=self.nodes[node])
        return [shortage.resource for shortage in shortages]

    def unique_host_names(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return tuple(nodes)

    def verdict_without_report(self, _pod: Pod, _node: str) -> Verdict:
        return unknown("no HostState")

    def claim_fit(self, _pod: Pod, _node: str, *, idle: bool = False) -> ClaimFit:
        return ClaimFit(possible=True, certain=not idle)

    def claims_open(self, _pod: Pod) -> bool:
        return False

    def claim_kind(self, pod: Pod) -> str:
        return pod.uid

    def explain_claims(
        self, _pod: Pod, _node: str, _verdict: Verdict | None = None, _newer: object = None
    ) -> tuple[()]:
        return ()

    def bound_to(self, node: str) -> set[str]:
        return {uid for uid, (_, host) in self.bound.items() if host == node}

    steering_known = True

    def has_markers(self, _node: str) -> bool:
        return True


class Machine:
    """A scheduling state with its cluster, and the time."""

    def __init__(self, hosts: dict[str, Host], *, gate: GateOptions | None = None, patience: float = 60.0) -> None:
        self.cluster, self.facts, self.now = Cluster(), PlainFacts(), 0.0
        self.hosts = hosts
        self.sequences = dict.fromkeys(hosts, 0)
        self.state = SchedulingState(self.cluster, self.facts, gate=gate)
        self.state.kept_nodes.patience |= dict.fromkeys((WaitState.GATED, WaitState.UNSCHEDULABLE), patience)
        self.state.schedulers.of_gate = frozenset((SCHEDULER,))
        for name in hosts:
            self.facts.nodes[name] = ALLOCATABLE
            self.report(name)

    def report(self, name: str) -> None:
        """The observer of a host reports."""
        self.sequences[name] += 1
        self.handle(events.HostReported(report(name, self.hosts[name], self.sequences[name])))

    @property
    def gate(self) -> Gate:
        assert self.state.gate
        return self.state.gate

    def handle(self, event: events.Event) -> list[Instruction]:
        return self.state.handle(event, now=self.now)

    def wait(
        self,
        pod: Pod,
        age: int = 0,
        *,
        state: WaitState = WaitState.GATED,
        group: GroupKey | None = None,
        scheduler: str = SCHEDULER,
    ) -> PodFacts:
        """A pod without a node is seen."""
        order = (-(pod.priority or 0), f"{age:09}", pod.namespace, pod.name)
        since = self.facts.pods[pod.uid].since if pod.uid in self.facts.pods else self.now
        facts = PodFacts(pod=pod, order=order, state=state, since=since, scheduler=scheduler, group=group)
        return self.see(facts)

    def see(self, facts: PodFacts, **changes: object) -> PodFacts:
        facts = self.facts.pods[facts.uid] = replace(facts, **changes)  # type: ignore[arg-type]
        if facts.group:
            self.facts.group_of[facts.uid] = facts.group
        self.handle(events.PodSeen(facts))
        return facts

    def bind(self, pod: Pod) -> list[Instruction]:
        """The API server shows that a pod is bound where it was assumed, or released to."""
        (node,) = self.state.assumptions.nodes[pod.uid]
        self.facts.pods.pop(pod.uid, None)
        self.facts.bound[pod.uid] = (pod, node)
        observed = self.handle(events.PodObserved(pod, node, PodStage.RUNNING))
        return [*observed, *self.handle(events.PodBound(pod.uid, node, None))]

    def gone(self, uid: str) -> list[Instruction]:
        """A pod is deleted, or has ended."""
        self.facts.pods.pop(uid, None)
        self.facts.group_of.pop(uid, None)
        _, node = self.facts.bound.pop(uid, (None, ""))
        return self.handle(events.PodGone(uid, node))

    def pass_time(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self.handle(events.TimePassed())

    def place_next(self) -> list[Instruction] | None:
        """Try the next pod behind the gate; ``None``: there is none to try."""
        tries = self.gate.queue.tries
        done = self.handle(events.PlaceNext())
        return None if self.gate.queue.tries == tries else done
