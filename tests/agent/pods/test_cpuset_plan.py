"""Cpuset updates: which containers are updated, when, in which order, and what happens on failures."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from alignup.agent.pods.cpusets import (
    NO_CPUS,
    NO_STATUS,
    NOT_RUNNING,
    AppliedCpusets,
    ContainerKey,
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
from alignup.run.cri.types import ContainerState
from tests.agent.pods.cpuset_passes import reconcile_now
from tests.align.hosts import host
from tests.effort import examples
from tests.strategies_pods import guaranteed

UPDATE_FAILED = "the runtime failed"


@dataclass
class FakeContainer:
    """A container in the runtime."""

    name: ContainerKey
    cpus: CpuSet
    state: ContainerState = ContainerState.RUNNING


def do_nothing(_id: str, _before: CpuSet) -> None:
    pass


@dataclass
class FakeRuntime:
    """An in-memory runtime that records updates, and fails those of *failing* ids."""

    containers: dict[str, FakeContainer] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    updates: list[tuple[str, str]] = field(default_factory=list)
    after_update: Callable[[str, CpuSet], None] = do_nothing  #: called with the id and the previous CPUs

    def statuses(self) -> ObservedContainers:
        found: dict[str, dict[str, ObservedContainer]] = {}
        for id_, one in self.containers.items():
            found.setdefault(one.name[0], {})[one.name[1]] = ObservedContainer(one.state, id_)
        return found

    def update(self, container_id: str, cpus: CpuSet) -> None:
        assert cpus, "a container cannot run without CPUs"
        assert self.containers[container_id].state is ContainerState.RUNNING
        self.updates.append((container_id, bits.show(cpus)))
        if container_id in self.failing:
            raise EnforceError(UPDATE_FAILED)
        before, self.containers[container_id].cpus = self.containers[container_id].cpus, cpus
        self.after_update(container_id, before)

    def take_updates(self) -> list[tuple[str, str]]:
        """The updates since the last call."""
        made, self.updates = self.updates, []
        return made

    def running(self) -> Iterator[tuple[str, FakeContainer]]:
        return ((id_, one) for id_, one in self.containers.items() if one.state is ContainerState.RUNNING)


@dataclass
class FixedRuntime:
    """A runtime with a fixed status, in which every update succeeds."""

    observed: ObservedContainers

    def statuses(self) -> ObservedContainers:
        return self.observed

    def update(self, container_id: str, cpus: CpuSet) -> None:
        pass


def pod(uid: str, *names: str) -> Pod:
    return Pod(name=uid, uid=uid, containers=tuple(map(Container, names or ("app",))))


def cpus(text: str) -> CpuSet:
    return bits.parse(text)


IDLE = CpuLedger(node_cpus={0: cpus("0-7")}, reserved=cpus("0"), shared=cpus("0-7"))
A, B, C = ("a", "app"), ("b", "app"), ("c", "app")


def runtime_of(*names: ContainerKey, on: str = "0-7") -> FakeRuntime:
    """A runtime where the container of pod ``a`` has the id ``a``, and so on."""
    return FakeRuntime({name[0]: FakeContainer(name, cpus(on)) for name in names})


def owned(**given: str) -> CpuLedger:
    """A ledger where the containers ``app`` of these pods have these exclusive CPUs."""
    ledger = IDLE
    for uid, text in given.items():
        ledger = ledger.give(uid, "app", cpus=cpus(text))
    return ledger


def applied_cpusets(**last: str) -> AppliedCpusets:
    return AppliedCpusets(last={(uid, "app"): cpus(text) for uid, text in last.items()})


@pytest.mark.parametrize(
    ("observed", "results"),
    [
        pytest.param(None, [CpusetResult("a", problem=NO_STATUS)], id="a pod without a status"),
        pytest.param({}, [CpusetResult("a", "app", problem=NOT_RUNNING)], id="a container without a status"),
        pytest.param(
            {"app": ObservedContainer()}, [CpusetResult("a", "app", problem=NOT_RUNNING)], id="a container without id"
        ),
        pytest.param(
            {"app": ObservedContainer(ContainerState.CREATED, "x")},
            [CpusetResult("a", "app", problem=NOT_RUNNING)],
            id="a waiting container",
        ),
        pytest.param(
            {"app": ObservedContainer(ContainerState.RUNNING)},
            [CpusetResult("a", "app", problem=NOT_RUNNING)],
            id="a running container without id",
        ),
        pytest.param(
            {"app": ObservedContainer(ContainerState.EXITED, "x")},
            [],
            id="a terminated container",
        ),
        pytest.param(
            {"app": ObservedContainer(ContainerState.RUNNING, "x")},
            [CpusetResult("a", "app", "x")],
            id="a running container",
        ),
    ],
)
def test_only_running_containers_are_updated(observed, results):
    runtime = FixedRuntime({} if observed is None else {"a": observed})

    planned, updates = plan_cpusets(AppliedCpusets(), [pod("a")], statuses=runtime.statuses(), ledger=IDLE)
    applied, _ = reconcile_now(AppliedCpusets(), [pod("a")], ledger=IDLE, runtime=runtime)

    assert list(planned) == results
    assert [update.id for update in updates] == [one.id for one in results if one.id]
    assert applied.ids == {one.id: one.name for one in results if one.id}


def test_results_are_in_the_order_of_pods_with_init_containers_first():
    first = replace(pod("z", "app", "log"), init=(Container("init"),))

    results, _ = plan_cpusets(AppliedCpusets(), [first, pod("a")], statuses={"z": {}, "a": {}}, ledger=IDLE)

    assert [one.name for one in results] == [("z", "init"), ("z", "app"), ("z", "log"), A]


def test_sharers_follow_the_shared_cpus():
    runtime, pods = runtime_of(A), [pod("a"), pod("b")]

    applied, _ = reconcile_now(AppliedCpusets(), pods, ledger=IDLE, runtime=runtime)
    applied, _ = reconcile_now(applied, pods, ledger=owned(b="2-3"), runtime=runtime)
    applied, _ = reconcile_now(applied, pods, ledger=owned(b="2-3"), runtime=runtime)
    applied, _ = reconcile_now(applied, pods, ledger=IDLE, runtime=runtime)

    assert runtime.take_updates() == [("a", "0-7"), ("a", "0-1,4-7"), ("a", "0-7")]


def test_failed_updates_are_retried_until_they_succeed():
    runtime, pods = runtime_of(A, B), [pod("a"), pod("b")]
    runtime.failing = {"a"}

    applied, first = reconcile_now(AppliedCpusets(), pods, ledger=IDLE, runtime=runtime)
    applied, second = reconcile_now(applied, pods, ledger=IDLE, runtime=runtime)
    runtime.failing = set()
    applied, third = reconcile_now(applied, pods, ledger=IDLE, runtime=runtime)
    reconcile_now(applied, pods, ledger=IDLE, runtime=runtime)

    assert first == second == (CpusetResult(*A, "a", UPDATE_FAILED), CpusetResult(*B, "b"))
    assert third == (CpusetResult(*A, "a"), CpusetResult(*B, "b"))
    assert runtime.take_updates() == [("a", "0-7"), ("b", "0-7"), ("a", "0-7"), ("a", "0-7")]


def test_no_container_is_moved_to_an_empty_cpuset():
    strict = CpuLedger(node_cpus={0: cpus("0-3")}, reserved=cpus("0"), shared=cpus("1-3"))
    runtime = runtime_of(A, B, on="1-3")

    applied, results = reconcile_now(
        applied_cpusets(a="1-3"),
        [pod("a"), pod("b")],
        ledger=strict.give("b", "app", cpus=cpus("1-3")),
        runtime=runtime,
    )

    assert results == (CpusetResult(*A, "a", NO_CPUS), CpusetResult(*B, "b"))
    assert applied.last == {A: cpus("1-3"), B: cpus("1-3")}
    assert runtime.take_updates() == [("b", "1-3")]


def test_an_owner_does_not_wait_for_a_container_without_cpus():
    """Waiting would leave it on the CPUs of another container; the overlap on its new CPUs is reported."""
    strict = CpuLedger(node_cpus={0: cpus("0-3")}, reserved=cpus("0"), shared=cpus("1-3"))
    full = strict.give("b", "app", cpus=cpus("1")).give("c", "app", cpus=cpus("2-3"))
    runtime = runtime_of(A, B, on="1-2")
    runtime.containers["b"].cpus = cpus("3")

    applied, results = reconcile_now(
        applied_cpusets(a="1-2", b="3"), [pod("a"), pod("b"), pod("c")], ledger=full, runtime=runtime
    )

    assert results == (CpusetResult(*A, "a", NO_CPUS), CpusetResult(*B, "b"), CpusetResult("c", problem=NO_STATUS))
    assert applied.last == {A: cpus("1-2"), B: cpus("1")}
    assert runtime.take_updates() == [("b", "1")]


def test_a_container_created_on_exclusive_cpus_needs_no_update():
    ledger = owned(a="1-2")
    applied = AppliedCpusets().added("a", A, ledger=ledger).added("b", B, ledger=ledger)

    assert applied.last == {A: cpus("1-2")}
    assert [update.id for update in plan_of(applied, ledger, A, B)] == ["b"]


def test_a_container_restarted_on_other_shared_cpus_is_updated():
    """The kubelet compares with what it applied before the restart, and leaves this container where it is."""
    runtime, pods = runtime_of(A), [pod("a"), pod("b")]
    applied, _ = reconcile_now(AppliedCpusets(), pods, ledger=IDLE, runtime=runtime)

    runtime.containers = {"again": FakeContainer(A, cpus("0-1,4-7"))}
    applied = applied.added("again", A, ledger=owned(b="2-3"))
    applied, _ = reconcile_now(applied, pods, ledger=IDLE, runtime=runtime)
    reconcile_now(applied, pods, ledger=IDLE, runtime=runtime)

    assert runtime.take_updates() == [("a", "0-7"), ("again", "0-7")]


def test_removed_containers_are_forgotten():
    applied = AppliedCpusets().added("a", A, ledger=owned(a="1")).added("b", B, ledger=owned(b="2"))

    assert applied.removed("a") == AppliedCpusets(last={B: cpus("2")}, ids={"b": B})
    assert applied.removed("unknown") is applied


@pytest.mark.parametrize(
    ("ready", "known"), [(True, {A}), (False, {A, B})], ids=["all sources are ready", "not all are ready"]
)
def test_released_pods_are_forgotten_once_all_sources_are_ready(ready, known):
    applied = AppliedCpusets().added("a", A, ledger=owned(a="1")).added("b", B, ledger=owned(b="2"))

    after, _ = reconcile_now(applied, [pod("a")], ledger=owned(a="1"), runtime=FakeRuntime(), ready=ready)

    assert set(after.last) == set(after.ids.values()) == known


@pytest.mark.parametrize(
    ("last", "now", "order"),
    [
        pytest.param({}, {}, "abc", id="sharers keep their order"),
        pytest.param({}, {"a": "1", "b": "2"}, "cab", id="sharers go before owners"),
        pytest.param({"c": "0-7"}, {"a": "1-2"}, "bca", id="also when their CPUs are known"),
        pytest.param(
            {"a": "1-2", "b": "3-4", "c": "5-6"},
            {"a": "3-4", "b": "5-6", "c": "7"},
            "cba",
            id="an owner moves when its target is free",
        ),
        pytest.param({"a": "1-2", "b": "3-4"}, {"a": "3-4", "b": "1-2"}, "cab", id="swaps keep their order"),
        pytest.param(
            {"a": "1", "b": "2", "c": "3"},
            {"a": "2", "b": "1", "c": "4"},
            "cab",
            id="an owner with a free target goes before a swap",
        ),
        pytest.param(
            {"a": "1", "b": "2-3", "c": "4"},
            {"a": "2", "b": "4", "c": "3"},
            "bac",
            id="one of a swap goes before an owner that waits for it",
        ),
    ],
)
def test_updates_are_ordered_so_that_exclusive_cpus_are_free(last, now, order):
    updates = plan_of(applied_cpusets(**last), owned(**now), A, B, C)

    assert "".join(update.id for update in updates) == order


def test_containers_of_one_pod_do_not_block_each_other():
    ledger = IDLE.give("a", "init", cpus=cpus("1-2")).give("a", "app", cpus=cpus("2-3"))
    applied = AppliedCpusets(last={("a", "init"): cpus("5"), A: cpus("1")})
    one = replace(pod("a"), init=(Container("init"),))

    _, updates = plan_cpusets(applied, [one], statuses=statuses_of(("a", "init"), A), ledger=ledger)

    assert [update.name[1] for update in updates] == ["init", "app"]


def statuses_of(*names: ContainerKey) -> ObservedContainers:
    found: dict[str, dict[str, ObservedContainer]] = {}
    for uid, name in names:
        found.setdefault(uid, {})[name] = ObservedContainer(ContainerState.RUNNING, uid if name == "app" else name)
    return found


def plan_of(applied: AppliedCpusets, ledger: CpuLedger, *names: ContainerKey):
    return plan_cpusets(applied, [pod(uid) for uid, _ in names], statuses=statuses_of(*names), ledger=ledger)[1]


def test_containers_of():
    assert containers_of([pod("a", "x", "y"), pod("b")]) == {("a", "x"), ("a", "y"), B}


def guaranteed_pod(uid: str, *apps: str, init: Iterable[str] = (), whole: str = "") -> Pod:
    """A pod with CPU requests of its containers, and perhaps of the pod as a whole."""
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


class CpusetLifecycle(RuleBasedStateMachine):
    """Pods come and go, and updates sometimes fail; running containers end up on their CPUs."""

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
        self.applied = AppliedCpusets()
        self.runtime = FakeRuntime()
        self.number = 0
        self.known = True  #: whether ``applied`` covers all owners

    @property
    def ledger(self) -> CpuLedger:
        return self.host.ledger.cpus

    @property
    def pods(self) -> list[Pod]:
        return [admitted.pod for admitted in self.host.ledger.pods.values()]

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
        """Start or restart a container; perhaps others are moved *first*."""
        name = data.draw(st.sampled_from(sorted(containers_of(self.pods))))
        self.runtime.containers = {id_: one for id_, one in self.runtime.containers.items() if one.name != name}
        clear = first and not any(one.problem for one in self.check_pass(ready=True) if one.id)
        self.run(name)
        assert not clear or not set(self.overlaps())

    def run(self, name: ContainerKey) -> None:
        """Start a container on the CPUs it may use now, if any."""
        on = self.ledger.runs_on(*name)
        if on:
            self.number += 1
            self.runtime.containers[f"id{self.number}"] = FakeContainer(name, on)
            self.applied = self.applied.added(f"id{self.number}", name, ledger=self.ledger)

    @precondition(lambda self: self.runtime.containers)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.runtime.containers)))
        self.runtime.containers[id_].state = ContainerState.EXITED

    @precondition(lambda self: self.runtime.containers)
    @rule(data=st.data())
    def fail_updates(self, data: st.DataObject) -> None:
        self.runtime.failing = data.draw(st.sets(st.sampled_from(sorted(self.runtime.containers)), max_size=2))

    @rule(uids=st.lists(st.sampled_from(sorted(PODS)), unique=True))
    def replace_pods(self, uids: list[str]) -> None:
        """Release all pods and admit others, while containers keep running."""
        before = {one.uid for one in self.pods}
        for uid in before:
            self.host.release(uid)
        for uid in uids:
            self.host.admit(PODS[uid])
        self.end(before - self.host.ledger.pods.keys())

    @rule()
    def restart_agent(self) -> None:
        self.applied = AppliedCpusets()
        self.known = False

    @rule(ready=st.booleans())
    def reconcile(self, ready: bool) -> None:
        self.check_pass(ready=ready)

    def check_pass(self, *, ready: bool) -> tuple[CpusetResult, ...]:
        """Run one pass and check it."""
        before = set(self.overlaps())
        if self.known:
            self.runtime.after_update = partial(self.check_update, before)

        self.applied, results = reconcile_now(
            self.applied, self.pods, ledger=self.ledger, runtime=self.runtime, ready=ready
        )

        tried = [id_ for id_, _ in self.runtime.take_updates()]
        assert len(set(tried)) == len(tried)
        self.check_results(results)
        self.known = self.known or not any(one.problem for one in results if one.id)
        self.check_repeat(results, ready=ready)
        return results

    def check_update(self, before: set[tuple[str, str]], moved: str, came_from: CpuSet) -> None:
        """A move creates no overlap, except with containers that cannot move, or in a cycle of blocked containers."""
        new = {(owner, other) for owner, other in set(self.overlaps()) - before if not self.cannot_move(other)}
        if new:
            rest = [id_ for id_ in self.misplaced() if not self.cannot_move(id_) and id_ != moved]
            assert {other for _, other in new} <= set(rest), "an overlap with a container that does not move"
            used = {moved: came_from} | {id_: self.runtime.containers[id_].cpus for id_ in rest}
            blockers = {id_: self.blockers(id_, used) for id_ in used}
            assert all(blockers.values()), f"{moved} moved before containers that nothing blocked"
            reached = blockers[moved]
            for _ in used:
                reached = reached.union(*(blockers[id_] for id_ in reached))
            assert moved in reached, f"{moved} moved before the containers that blocked it"
        before |= set(self.overlaps())

    def check_results(self, results: tuple[CpusetResult, ...]) -> None:
        """Every running container is on its CPUs or has a problem, and none is missing."""
        problems = {one.name: one.problem for one in results}
        for id_, one in self.runtime.running():
            problem = problems[one.name]
            on = self.ledger.runs_on(*one.name)
            assert one.cpus == on or problem
            assert problem != NO_CPUS or not on
            assert problem != UPDATE_FAILED or id_ in self.runtime.failing
            assert problem in {"", NO_CPUS, UPDATE_FAILED}
        ended = {one.name for one in self.runtime.containers.values() if one.state is ContainerState.EXITED}
        unknown = {(one.uid, "") for one in self.pods} - {(uid, "") for uid in self.runtime.statuses()}
        expected = {name for name in containers_of(self.pods) - ended if (name[0], "") not in unknown}
        assert problems.keys() == expected | unknown

    def check_repeat(self, results: tuple[CpusetResult, ...], *, ready: bool) -> None:
        """Another pass repeats only the failed updates."""
        self.runtime.after_update = do_nothing
        applied, again = reconcile_now(self.applied, self.pods, ledger=self.ledger, runtime=self.runtime, ready=ready)
        assert again == results
        assert applied == self.applied
        assert [id_ for id_, _ in self.runtime.take_updates()] == [
            one.id for one in self.in_order(results) if one.problem == UPDATE_FAILED
        ]

    def in_order(self, results: tuple[CpusetResult, ...]) -> list[CpusetResult]:
        return sorted(results, key=lambda one: self.ledger.holds(*one.name) is not None)

    def overlaps(self) -> Iterator[tuple[str, str]]:
        """Pairs of an owner and a container of another pod on its exclusive CPUs."""
        for owner, one in self.runtime.running():
            own = (self.ledger.holds(*one.name) or 0) & one.cpus
            for other, another in self.runtime.running():
                if own & another.cpus and one.name[0] != another.name[0]:
                    yield owner, other

    def cannot_move(self, id_: str) -> bool:
        """Whether a container cannot move now: its updates fail, or it has no CPUs."""
        return id_ in self.runtime.failing or not self.ledger.runs_on(*self.runtime.containers[id_].name)

    def misplaced(self) -> list[str]:
        return [id_ for id_, one in self.runtime.running() if one.cpus != self.ledger.runs_on(*one.name)]

    def blockers(self, id_: str, used: Mapping[str, CpuSet]) -> set[str]:
        """Those of some containers with their CPUs that are on the exclusive CPUs of a container of another pod."""
        names = {one: self.runtime.containers[one].name for one in used}
        own = self.ledger.holds(*names[id_]) or 0
        return {other for other, on in used.items() if own & on and names[other][0] != names[id_][0]}

    def end(self, uids: Iterable[str]) -> None:
        """Remove the containers of these pods."""
        gone = set(uids)
        self.runtime.containers = {id_: one for id_, one in self.runtime.containers.items() if one.name[0] not in gone}


def test_lifecycle_without_shared_cpus():
    """Found by the state machine: a sharer has no CPUs to move to, and an owner moves onto its CPUs."""
    machine = CpusetLifecycle()
    machine.begin(strict=True, scope=Scope.POD)
    machine.replace_pods(["again", "as one"])
    machine.host.release("again")
    machine.admit("shares", start=True)
    machine.run(("as one", "c0"))
    machine.replace_pods(["as one", "shares", "two", "again", "both"])

    results = {one.name: one.problem for one in machine.check_pass(ready=False) if one.id}

    assert results == {("shares", "c0"): NO_CPUS, ("as one", "c0"): ""}


def test_lifecycle_of_two_pods_that_swap_cpus():
    """Found by the state machine: a pod moves to CPUs of another one, which moves to the CPUs of the first."""
    machine = CpusetLifecycle()
    machine.begin(strict=False, scope=Scope.CONTAINER)
    machine.replace_pods(["again", "as one", "both", "with init", "one", "shares", "shares too"])
    machine.run(("with init", "i0"))
    machine.replace_pods(["again", "as one", "shares", "shares too", "with init"])
    machine.admit("one", start=True)
    machine.replace_pods(["again", "shares", "with init", "one"])

    results = machine.check_pass(ready=True)

    assert machine.runtime.containers == {
        "id1": FakeContainer(("with init", "i0"), cpus("2-3")),
        "id2": FakeContainer(("one", "c0"), cpus("4")),
    }
    assert not [one for one in results if one.id and one.problem]


TestCpusetLifecycle = CpusetLifecycle.TestCase
TestCpusetLifecycle.settings = settings(max_examples=examples(50), stateful_step_count=40)
