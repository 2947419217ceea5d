"""Clusters under any sequence of events: verdicts are those of the kubelets, however they were cached or ordered."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import PodStage
from alignup.placement.pod_shape import build_shape
from alignup.placement.verdict import VerdictKind
from tests.align.hosts import arrivals, hosts, make_host, make_pod
from tests.effort import examples
from tests.placement.clusters import report, shared_pod

NAMES = ("a", "b", "c")
CHOICES = [make_pod("new", cpu="1"), make_pod("new", cpu="2", gpu="1"), make_pod("new", cpu="4"), shared_pod("new")]

small_pods = st.sampled_from(CHOICES)


def expected(cluster: Cluster, name: str, wanted: Pod) -> VerdictKind:
    """The verdict of one host, decided afresh in each of its possible states."""
    record = cluster.record(name)
    assert record
    probe = build_shape(wanted).pod
    outcomes = {record.model.at(ledger).decide_without_plugins(probe).admitted for ledger in record.states().ledgers}
    if len(outcomes) != 1:
        return VerdictKind.UNKNOWN
    return VerdictKind.ADMITS if outcomes.pop() else VerdictKind.REJECTS


class Follow(RuleBasedStateMachine):
    """A cluster and its kubelets: each admits the bound pods in order, and an observer reports now and then."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.kubelets = {name: data.draw(st.builds(make_host) | hosts()) for name in NAMES}
        self.cluster = Cluster(max_unconfirmed=data.draw(st.sampled_from((1, 2, None))), max_shapes=2)
        self.watched: dict[str, list[Pod]] = {name: [] for name in NAMES}  #: bound, and not seen by the kubelet
        self.assumed: dict[str, tuple[list[str], Pod]] = {}  #: not bound yet, with the hosts that may get them
        self.running: dict[str, tuple[str, Pod]] = {}  #: bound
        self.number = self.sequence = 0
        for name in NAMES:
            self.report(name)

    @rule(name=st.sampled_from(NAMES))
    def report(self, name: str) -> None:
        self.sequence += 1
        self.cluster.confirm(report(name, self.kubelets[name], self.sequence))

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def assume(self, name: str, data: st.DataObject) -> None:
        self.number += 1
        wanted = replace(data.draw(small_pods | arrivals("u")), uid=f"u{self.number}", name=f"u{self.number}")
        if self.cluster.assume(wanted, name).admits:
            self.assumed[wanted.uid] = [name], wanted

    @rule(data=st.data())
    def assume_on_several(self, data: st.DataObject) -> None:
        self.number += 1
        wanted = replace(data.draw(small_pods), uid=f"u{self.number}", name=f"u{self.number}")
        admitting = [name for name in NAMES if self.cluster.assume(wanted, name, or_elsewhere=True).admits]
        if admitting:
            self.assumed[wanted.uid] = admitting, wanted

    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        if self.assumed:
            uid = data.draw(st.sampled_from(sorted(self.assumed)))
            names, wanted = self.assumed.pop(uid)
            name = data.draw(st.sampled_from(names))
            self.running[uid] = name, wanted
            self.watched[name].append(wanted)
            self.cluster.observe(wanted, name, PodStage.RUNNING)
            records = {host: self.cluster.record(host) for host in NAMES}
            assert [host for host, record in records.items() if record and record.holds(uid)] == [name]

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        if self.assumed:
            uid = data.draw(st.sampled_from(sorted(self.assumed)))
            del self.assumed[uid]
            self.cluster.forget(uid)

    @rule(name=st.sampled_from(NAMES))
    def admit(self, name: str) -> None:
        """The kubelet sees the next bound pod."""
        if self.watched[name]:
            wanted = self.watched[name].pop(0)
            kubelet = self.kubelets[name]
            decision = kubelet.decide_without_plugins(wanted)
            if decision.admitted:
                kubelet.apply(decision)
            else:
                del self.running[wanted.uid]
                self.cluster.observe_rejection(wanted.uid, name, "")

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A pod ends that its kubelet has admitted."""
        waiting = {pod.uid for bound in self.watched.values() for pod in bound}
        ended = sorted(self.running.keys() - waiting)
        if ended:
            uid = data.draw(st.sampled_from(ended))
            name, wanted = self.running.pop(uid)
            if data.draw(st.booleans()):
                self.cluster.observe(wanted, name, PodStage.TERMINATING)
            self.kubelets[name].release(uid)
            self.cluster.observe(wanted, name, PodStage.ENDED)

    @invariant()
    def cached_verdicts_are_those_of_a_fresh_decision(self) -> None:
        if not hasattr(self, "cluster"):
            return
        for wanted in CHOICES:
            for name, verdict in self.cluster.feasible(wanted).items():
                if verdict.kind is not VerdictKind.UNKNOWN:
                    assert verdict.kind is expected(self.cluster, name, wanted), (name, wanted)

    @invariant()
    def the_best_hosts_are_those_of_the_ranking(self) -> None:
        if not hasattr(self, "cluster"):
            return
        for wanted in CHOICES:
            ranked = {ranked_host.host: ranked_host.score.total for ranked_host in self.cluster.rank(wanted)}
            best = self.cluster.best(wanted, 2, among=NAMES)
            assert [ranked[name] for name in best] == list(ranked.values())[:2]
            assert set(self.cluster.best(wanted, 9, among="ab", last="a")) == ranked.keys() & {"a", "b"}
            assert self.cluster.verdicts(wanted, ["b", "d"]) == {"b": self.cluster.feasible(wanted)["b"]}

    def teardown(self) -> None:
        """Assumed, bound, admitted and reported, a pod counts as the report says."""
        if not hasattr(self, "cluster"):
            return
        for uid in list(self.assumed):
            self.cluster.forget(uid)
        for name in NAMES:
            while self.watched[name]:
                self.admit(name)
            self.report(name)
            record = self.cluster.record(name)
            assert record
            assert [possible.pods.keys() for possible in record.states().ledgers] == [
                self.kubelets[name].ledger.pods.keys()
            ]
            (ledger,) = record.states().ledgers
            assert ledger.alignment_key() == self.kubelets[name].ledger.alignment_key()
            assert ledger.used == self.kubelets[name].ledger.used


Follow.TestCase.settings = settings(
    max_examples=examples(15), stateful_step_count=20, suppress_health_check=list(HealthCheck)
)
TestFollow = Follow.TestCase


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """Events of one host: what happens to which pod."""
    lives = []
    for name in NAMES:
        for number in range(draw(st.integers(0, 3))):
            uid = f"{name}{number}"
            steps = ["assume", "bind", "terminate", "end"][: draw(st.integers(1, 4))]
            lives.append([(name, uid, step) for step in steps])
    return [event for events in lives for event in events]


def play(events: list[tuple[str, str, str]]) -> Cluster:
    cluster = Cluster(max_unconfirmed=None)
    for name in NAMES:
        cluster.confirm(report(name, make_host(Policy.SINGLE_NUMA_NODE)))
    stages = {"bind": PodStage.RUNNING, "terminate": PodStage.TERMINATING, "end": PodStage.ENDED}
    for name, uid, step in events:
        wanted = make_pod(uid, cpu="2")
        if step == "assume":
            cluster.assume(wanted, name)
        else:
            cluster.observe(wanted, name, stages[step])
    return cluster


@settings(max_examples=examples(30))
@given(histories(), st.randoms(use_true_random=False))
def test_the_order_of_events_of_different_hosts_does_not_matter(events, random):
    queues = {name: [event for event in events if event[0] == name] for name in NAMES}
    shuffled = []
    while any(queues.values()):
        name = random.choice([name for name, left in queues.items() if left])
        shuffled.append(queues[name].pop(0))

    straight, mixed = play(events), play(shuffled)

    for wanted in CHOICES:
        assert dict(straight.feasible(wanted)) == dict(mixed.feasible(wanted))
        assert straight.rank(wanted) == mixed.rank(wanted)
