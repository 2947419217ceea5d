"""Containers are kept on their CPUs: what the runtime is told, when, in which order, and what if it refuses."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from alignup.agent.pods.cpuset_plan import (
    NO_CPUS,
    NO_STATUS,
    NOT_RUNNING,
    AppliedCpusets,
    ContainerKey,
    ContainerPhase,
    CpusetResult,
    ObservedContainer,
    ObservedContainers,
    containers_of,
    plan_cpusets,
)
from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import EnforceError
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.align.workload import Container, Pod, Resources
from tests.agent.passes import passed
from tests.align.hosts import host
from tests.strategies_pods import guaranteed

REFUSED = "the runtime refuses"


@dataclass
class Running:
    """A container as it really is."""

    name: ContainerKey
    cpus: CpuSet
    phase: ContainerPhase = ContainerPhase.RUNNING


def nothing() -> None:
    pass


@dataclass
class Recorded:
    """A runtime in memory: it keeps its containers, notes every update, and refuses those of *failing* ids."""

    containers: dict[str, Running] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    updates: list[tuple[str, str]] = field(default_factory=list)
    after_update: Callable[[], None] = nothing

    def statuses(self) -> ObservedContainers:
        shown: dict[str, dict[str, ObservedContainer]] = {}
        for id_, one in self.containers.items():
            shown.setdefault(one.name[0], {})[one.name[1]] = ObservedContainer(one.phase, id_)
        return shown

    def update(self, container_id: str, cpus: CpuSet) -> None:
        assert cpus, "a container cannot run on no CPUs"
        assert self.containers[container_id].phase is ContainerPhase.RUNNING
        self.updates.append((container_id, bits.show(cpus)))
        if container_id in self.failing:
            raise EnforceError(REFUSED)
        self.containers[container_id].cpus = cpus
        self.after_update()

    def created_in(self) -> list[tuple[str, str]]:
        """The updates since it was asked last."""
        made, self.updates = self.updates, []
        return made

    def running(self) -> Iterator[tuple[str, Running]]:
        return ((id_, one) for id_, one in self.containers.items() if one.phase is ContainerPhase.RUNNING)


def pod(uid: str, *names: str) -> Pod:
    return Pod(name=uid, uid=uid, containers=tuple(map(Container, names or ("app",))))


def cpus(text: str) -> CpuSet:
    return bits.parse(text)


IDLE = CpuLedger(node_cpus={0: cpus("0-7")}, reserved=cpus("0"), shared=cpus("0-7"))
A, B, C = ("a", "app"), ("b", "app"), ("c", "app")


def runtime_of(*names: ContainerKey, on: str = "0-7") -> Recorded:
    """A runtime where the container of pod ``a`` has the id ``a``, and so on."""
    return Recorded({name[0]: Running(name, cpus(on)) for name in names})


def owned(**given: str) -> CpuLedger:
    """A ledger where the containers ``app`` of these pods own these CPUs."""
    ledger = IDLE
    for uid, text in given.items():
        ledger = ledger.give(uid, "app", cpus=cpus(text))
    return ledger


def told_of(**last: str) -> AppliedCpusets:
    return AppliedCpusets(last={(uid, "app"): cpus(text) for uid, text in last.items()})


@pytest.mark.parametrize(
    ("seen", "verdicts"),
    [
        pytest.param(None, [CpusetResult("a", problem=NO_STATUS)], id="a pod the runtime does not know"),
        pytest.param({}, [CpusetResult("a", "app", problem=NOT_RUNNING)], id="a container it does not know"),
        pytest.param(
            {"app": ObservedContainer()}, [CpusetResult("a", "app", problem=NOT_RUNNING)], id="a container without id"
        ),
        pytest.param(
            {"app": ObservedContainer(ContainerPhase.WAITING, "x")},
            [CpusetResult("a", "app", problem=NOT_RUNNING)],
            id="one that waits",
        ),
        pytest.param(
            {"app": ObservedContainer(ContainerPhase.RUNNING)},
            [CpusetResult("a", "app", problem=NOT_RUNNING)],
            id="one that runs without id",
        ),
        pytest.param(
            {"app": ObservedContainer(ContainerPhase.TERMINATED, "x")}, [], id="of one that has ended nothing is said"
        ),
        pytest.param(
            {"app": ObservedContainer(ContainerPhase.RUNNING, "x")},
            [CpusetResult("a", "app", "x")],
            id="one that runs is seen to",
        ),
    ],
)
def test_only_what_runs_is_told(seen, verdicts):
    planned = plan_cpusets(AppliedCpusets(), [pod("a")], statuses={} if seen is None else {"a": seen}, ledger=IDLE)

    assert list(planned.results) == verdicts
    assert [update.id for update in planned.updates] == [one.id for one in verdicts if one.id]
    assert planned.told.ids == {one.id: one.name for one in verdicts if one.id}


def test_init_containers_come_first_and_pods_in_their_order():
    first = replace(pod("z", "app", "log"), init=(Container("init"),))

    planned = plan_cpusets(AppliedCpusets(), [first, pod("a")], statuses={"z": {}, "a": {}}, ledger=IDLE)

    assert [one.name for one in planned.results] == [("z", "init"), ("z", "app"), ("z", "log"), A]


def test_whoever_shares_follows_the_shared_cpus():
    runtime, pods = runtime_of(A), [pod("a"), pod("b")]

    told, _ = passed(AppliedCpusets(), pods, ledger=IDLE, runtime=runtime)
    told, _ = passed(told, pods, ledger=owned(b="2-3"), runtime=runtime)
    told, _ = passed(told, pods, ledger=owned(b="2-3"), runtime=runtime)
    told, _ = passed(told, pods, ledger=IDLE, runtime=runtime)

    assert runtime.created_in() == [("a", "0-7"), ("a", "0-1,4-7"), ("a", "0-7")]


def test_what_was_refused_is_tried_again_until_it_is_done():
    runtime, pods = runtime_of(A, B), [pod("a"), pod("b")]
    runtime.failing = {"a"}

    told, first = passed(AppliedCpusets(), pods, ledger=IDLE, runtime=runtime)
    told, second = passed(told, pods, ledger=IDLE, runtime=runtime)
    runtime.failing = set()
    told, third = passed(told, pods, ledger=IDLE, runtime=runtime)
    passed(told, pods, ledger=IDLE, runtime=runtime)

    assert first == second == (CpusetResult(*A, "a", REFUSED), CpusetResult(*B, "b"))
    assert third == (CpusetResult(*A, "a"), CpusetResult(*B, "b"))
    assert runtime.created_in() == [("a", "0-7"), ("b", "0-7"), ("a", "0-7"), ("a", "0-7")]


def test_nobody_is_put_on_no_cpus():
    strict = CpuLedger(node_cpus={0: cpus("0-3")}, reserved=cpus("0"), shared=cpus("1-3"))
    runtime = runtime_of(A, B, on="1-3")

    told, verdicts = passed(
        told_of(a="1-3"), [pod("a"), pod("b")], ledger=strict.give("b", "app", cpus=cpus("1-3")), runtime=runtime
    )

    assert verdicts == (CpusetResult(*A, "a", NO_CPUS), CpusetResult(*B, "b"))
    assert told.last == {A: cpus("1-3"), B: cpus("1-3")}
    assert runtime.created_in() == [("b", "1-3")]


def test_an_owner_does_not_wait_for_one_who_has_nowhere_to_go():
    """Waiting would leave it on CPUs that are another's by now; that somebody shares its new ones is said."""
    strict = CpuLedger(node_cpus={0: cpus("0-3")}, reserved=cpus("0"), shared=cpus("1-3"))
    full = strict.give("b", "app", cpus=cpus("1")).give("c", "app", cpus=cpus("2-3"))
    runtime = runtime_of(A, B, on="1-2")
    runtime.containers["b"].cpus = cpus("3")

    told, verdicts = passed(told_of(a="1-2", b="3"), [pod("a"), pod("b"), pod("c")], ledger=full, runtime=runtime)

    assert verdicts == (CpusetResult(*A, "a", NO_CPUS), CpusetResult(*B, "b"), CpusetResult("c", problem=NO_STATUS))
    assert told.last == {A: cpus("1-2"), B: cpus("1")}
    assert runtime.created_in() == [("b", "1")]


def test_one_that_starts_on_cpus_of_its_own_need_not_be_told():
    ledger = owned(a="1-2")
    told = AppliedCpusets().added("a", A, ledger=ledger).added("b", B, ledger=ledger)

    assert told.last == {A: cpus("1-2")}
    assert [update.id for update in plan_of(told, ledger, A, B)] == ["b"]


def test_one_that_was_started_again_on_other_shared_cpus_is_told():
    """The kubelet goes by what it said to the container before, and leaves this one where it is."""
    runtime, pods = runtime_of(A), [pod("a"), pod("b")]
    told, _ = passed(AppliedCpusets(), pods, ledger=IDLE, runtime=runtime)

    runtime.containers = {"again": Running(A, cpus("0-1,4-7"))}
    told = told.added("again", A, ledger=owned(b="2-3"))
    told, _ = passed(told, pods, ledger=IDLE, runtime=runtime)
    passed(told, pods, ledger=IDLE, runtime=runtime)

    assert runtime.created_in() == [("a", "0-7"), ("again", "0-7")]


def test_what_is_removed_is_forgotten():
    told = AppliedCpusets().added("a", A, ledger=owned(a="1")).added("b", B, ledger=owned(b="2"))

    assert told.removed("a") == AppliedCpusets(last={B: cpus("2")}, ids={"b": B})
    assert told.removed("unknown") is told


@pytest.mark.parametrize(("ready", "known"), [(True, {A}), (False, {A, B})], ids=["all pods are known", "not all are"])
def test_gone_pods_are_forgotten_once_all_pods_are_known(ready, known):
    told = AppliedCpusets().added("a", A, ledger=owned(a="1")).added("b", B, ledger=owned(b="2"))

    after, _ = passed(told, [pod("a")], ledger=owned(a="1"), runtime=Recorded(), ready=ready)

    assert set(after.last) == set(after.ids.values()) == known


@pytest.mark.parametrize(
    ("last", "now", "order"),
    [
        pytest.param({}, {}, "abc", id="those who share, as they come"),
        pytest.param({}, {"a": "1", "b": "2"}, "cab", id="those who share go before those who own"),
        pytest.param({"c": "0-7"}, {"a": "1-2"}, "bca", id="also when it is known where they are"),
        pytest.param(
            {"a": "1-2", "b": "3-4", "c": "5-6"},
            {"a": "3-4", "b": "5-6", "c": "7"},
            "cba",
            id="an owner moves when the one before has left",
        ),
        pytest.param({"a": "1-2", "b": "3-4"}, {"a": "3-4", "b": "1-2"}, "cab", id="who swaps goes as it comes"),
        pytest.param(
            {"a": "1", "b": "2", "c": "3"}, {"a": "2", "b": "1", "c": "4"}, "cab", id="who can move goes before a swap"
        ),
    ],
)
def test_nobody_moves_to_cpus_of_its_own_before_others_have_left(last, now, order):
    updates = plan_of(told_of(**last), owned(**now), A, B, C)

    assert "".join(update.id for update in updates) == order


def test_containers_of_one_pod_are_not_in_each_others_way():
    ledger = IDLE.give("a", "init", cpus=cpus("1-2")).give("a", "app", cpus=cpus("2-3"))
    told = AppliedCpusets(last={("a", "init"): cpus("5"), A: cpus("1")})
    one = replace(pod("a"), init=(Container("init"),))

    planned = plan_cpusets(told, [one], statuses=statuses_of(("a", "init"), A), ledger=ledger)

    assert [update.name[1] for update in planned.updates] == ["init", "app"]


def statuses_of(*names: ContainerKey) -> ObservedContainers:
    shown: dict[str, dict[str, ObservedContainer]] = {}
    for uid, name in names:
        shown.setdefault(uid, {})[name] = ObservedContainer(ContainerPhase.RUNNING, uid if name == "app" else name)
    return shown


def plan_of(told: AppliedCpusets, ledger: CpuLedger, *names: ContainerKey):
    return plan_cpusets(told, [pod(uid) for uid, _ in names], statuses=statuses_of(*names), ledger=ledger).updates


def test_containers_are_those_of_all_pods():
    assert containers_of([pod("a", "x", "y"), pod("b")]) == {("a", "x"), ("a", "y"), B}


def guaranteed_pod(uid: str, *apps: str, init: Iterable[str] = (), whole: str = "") -> Pod:
    """A pod whose containers ask for so many CPUs, and perhaps the pod as a whole."""
    amounts = {name: Quantity.parse(text) for name, text in {"cpu": whole, "memory": "1Gi"}.items() if whole}
    return Pod(
        name=uid,
        uid=uid,
        init=tuple(guaranteed(f"i{place}", {"cpu": asked, "memory": "8Mi"}) for place, asked in enumerate(init)),
        containers=tuple(guaranteed(f"c{place}", {"cpu": asked, "memory": "8Mi"}) for place, asked in enumerate(apps)),
        resources=Resources(amounts, amounts),
    )


PODS = {
    one.uid: one
    for one in (
        guaranteed_pod("two", "2"),
        guaranteed_pod("one", "1"),
        guaranteed_pod("again", "1"),
        guaranteed_pod("shares", "500m"),
        guaranteed_pod("shares too", "500m", "250m"),
        guaranteed_pod("both", "1", "500m"),
        guaranteed_pod("with init", "1", init=("2", "500m")),
        guaranteed_pod("as one", "1", "500m", whole="3"),
    )
}


class Life(RuleBasedStateMachine):
    """Pods come and go on a host whose runtime sometimes refuses; whoever runs is brought where it belongs."""

    @initialize(strict=st.booleans(), scope=st.sampled_from(Scope))
    def begin(self, strict: bool, scope: Scope) -> None:
        self.host = host(
            Policy.BEST_EFFORT,
            scope,
            memory=False,
            cpus=CpuSettings(
                policy="static",
                options={"strict-cpu-reservation": "true"} if strict else {},
                reservation=Quantity.parse("1"),
            ),
            gates=FeatureGates({"PodLevelResourceManagers": True}),
            fit_check=False,
        )
        self.told = AppliedCpusets()
        self.runtime = Recorded()
        self.number = 0
        self.sure = True  #: whether ``told`` says where everybody is who owns CPUs

    @property
    def ledger(self) -> CpuLedger:
        book: CpuLedger = self.host.ledger.cpus
        return book

    @property
    def pods(self) -> list[Pod]:
        return [resident.pod for resident in self.host.ledger.pods.values()]

    @rule(uid=st.sampled_from(sorted(PODS)), start=st.booleans())
    def admit(self, uid: str, start: bool) -> None:
        if uid not in self.host.ledger.pods and self.host.admit(PODS[uid]).admitted and start:
            for container in PODS[uid].all_containers:
                self.run((uid, container.name))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from([one.uid for one in self.pods]))
        self.host.release(uid)
        self.end({uid})

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), first=st.booleans())
    def start(self, data: st.DataObject, first: bool) -> None:
        """A container starts, or starts again under another id; perhaps others are moved *first*."""
        name = data.draw(st.sampled_from(sorted(containers_of(self.pods))))
        self.runtime.containers = {id_: one for id_, one in self.runtime.containers.items() if one.name != name}
        clear = first and not any(one.problem for one in self.passed(ready=True) if one.id)
        self.run(name)
        assert not clear or not set(self.meetings())

    def run(self, name: ContainerKey) -> None:
        """A container starts on the CPUs it may use now, if there are any."""
        on = self.ledger.runs_on(*name)
        if on:
            self.number += 1
            self.runtime.containers[f"id{self.number}"] = Running(name, on)
            self.told = self.told.added(f"id{self.number}", name, ledger=self.ledger)

    @precondition(lambda self: self.runtime.containers)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.runtime.containers)))
        self.runtime.containers[id_].phase = ContainerPhase.TERMINATED

    @precondition(lambda self: self.runtime.containers)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        self.runtime.failing = data.draw(st.sets(st.sampled_from(sorted(self.runtime.containers)), max_size=2))

    @rule(uids=st.lists(st.sampled_from(sorted(PODS)), unique=True))
    def place_anew(self, uids: list[str]) -> None:
        """All pods give back what they have, and these get something, while those who ran run on."""
        before = {one.uid for one in self.pods}
        for uid in before:
            self.host.release(uid)
        for uid in uids:
            self.host.admit(PODS[uid])
        self.end(before - self.host.ledger.pods.keys())

    @rule()
    def forget(self) -> None:
        """The agent starts again."""
        self.told = AppliedCpusets()
        self.sure = False

    @rule(ready=st.booleans())
    def reconcile(self, ready: bool) -> None:
        self.passed(ready=ready)

    def passed(self, *, ready: bool) -> tuple[CpusetResult, ...]:
        """One pass, looked at closely."""
        before = set(self.meetings())
        self.runtime.after_update = lambda: self.check_update(before) if self.sure else None

        self.told, verdicts = passed(self.told, self.pods, ledger=self.ledger, runtime=self.runtime, ready=ready)

        tried = [id_ for id_, _ in self.runtime.created_in()]
        assert len(set(tried)) == len(tried)
        self.check_verdicts(verdicts)
        self.sure = self.sure or not any(one.problem for one in verdicts if one.id)
        self.check_again(verdicts, ready=ready)
        return verdicts

    def check_update(self, before: set[tuple[str, str]]) -> None:
        """Who has just moved met nobody on its own CPUs, but those who stay, or if all were in others' way."""
        new = {(owner, other) for owner, other in set(self.meetings()) - before if not self.stays(other)}
        if new:
            mover = self.runtime.updates[-1][0]
            rest = [id_ for id_ in self.misplaced() if not self.stays(id_) and id_ != mover]
            assert {other for _, other in new} <= set(rest), "somebody is met who will not move any more"
            assert all(self.would_meet(id_) for id_ in rest), f"{mover} moved before its time"
        before |= set(self.meetings())

    def check_verdicts(self, verdicts: tuple[CpusetResult, ...]) -> None:
        """Whoever runs is where the ledger says, or it is said why not; nobody is left out."""
        problems = {one.name: one.problem for one in verdicts}
        for id_, one in self.runtime.running():
            problem = problems[one.name]
            on = self.ledger.runs_on(*one.name)
            assert one.cpus == on or problem
            assert problem != NO_CPUS or not on
            assert problem != REFUSED or id_ in self.runtime.failing
            assert problem in {"", NO_CPUS, REFUSED}
        ended = {one.name for one in self.runtime.containers.values() if one.phase is ContainerPhase.TERMINATED}
        unknown = {(one.uid, "") for one in self.pods} - {(uid, "") for uid in self.runtime.statuses()}
        said = {name for name in containers_of(self.pods) - ended if (name[0], "") not in unknown}
        assert problems.keys() == said | unknown

    def check_again(self, verdicts: tuple[CpusetResult, ...], *, ready: bool) -> None:
        """Told once more, the runtime hears only what it has refused."""
        self.runtime.after_update = nothing
        told, again = passed(self.told, self.pods, ledger=self.ledger, runtime=self.runtime, ready=ready)
        assert again == verdicts
        assert told == self.told
        assert [id_ for id_, _ in self.runtime.created_in()] == [
            one.id for one in self.in_order(verdicts) if one.problem == REFUSED
        ]

    def in_order(self, verdicts: tuple[CpusetResult, ...]) -> list[CpusetResult]:
        return sorted(verdicts, key=lambda one: self.ledger.holds(*one.name) is not None)

    def meetings(self) -> Iterator[tuple[str, str]]:
        """Those on CPUs that are theirs alone, with those of other pods on the same."""
        for owner, one in self.runtime.running():
            own = (self.ledger.holds(*one.name) or 0) & one.cpus
            for other, another in self.runtime.running():
                if own & another.cpus and one.name[0] != another.name[0]:
                    yield owner, other

    def stays(self, id_: str) -> bool:
        """Whether someone does not move now: the runtime refuses, or there is no CPU it could go to."""
        return id_ in self.runtime.failing or not self.ledger.runs_on(*self.runtime.containers[id_].name)

    def misplaced(self) -> list[str]:
        return [id_ for id_, one in self.runtime.running() if one.cpus != self.ledger.runs_on(*one.name)]

    def would_meet(self, id_: str) -> bool:
        """Whether someone would meet others of another pod on CPUs of its own."""
        name = self.runtime.containers[id_].name
        own = self.ledger.holds(*name) or 0
        return any(own & one.cpus for _, one in self.runtime.running() if one.name[0] != name[0])

    def end(self, uids: Iterable[str]) -> None:
        """The containers of these pods are gone."""
        gone = set(uids)
        self.runtime.containers = {id_: one for id_, one in self.runtime.containers.items() if one.name[0] not in gone}


def test_life_when_nothing_is_left_to_be_shared():
    """Found by the machine below: one that shared has no CPU to go to, and an owner moves to where it is."""
    life = Life()
    life.begin(strict=True, scope=Scope.POD)
    life.place_anew(["again", "as one"])
    life.host.release("again")
    life.admit("shares", start=True)
    life.run(("as one", "c0"))
    life.place_anew(["as one", "shares", "two", "again", "both"])

    verdicts = {one.name: one.problem for one in life.passed(ready=False) if one.id}

    assert verdicts == {("shares", "c0"): NO_CPUS, ("as one", "c0"): ""}


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=settings().max_examples // 2 or 1, stateful_step_count=40)
