"""An adversary that owns one namespace delays pods of others by twice the patience limit at most.

The same pods come with and without it. Its own pods never run: what runs takes room that quotas have to limit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from random import Random

import pytest

from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.placement.scheduling import events, kept_nodes, namespace_patience
from alignup.placement.scheduling.facts import GroupKey, PodFacts
from alignup.placement.scheduling.instructions import WriteRelease
from alignup.placement.scheduling.kept_nodes import NodeHolder
from alignup.placement.scheduling.options import GateOptions
from tests.align.hosts import host, pod
from tests.effort import SEED, rounds
from tests.placement.scheduling.machine import Machine

PATIENCE = 5.0
LIMIT = 100.0
STEP = 1.0  #: seconds between two checks
SLACK = 5 * STEP  #: a pod is placed at the next step, and its node is free a step after the end of the last one
SECONDS = 1500
ADVERSARY = "adversary"


@dataclass(frozen=True)
class Job:
    """Pods that come together, and end together."""

    name: str
    namespace: str
    comes: float
    seconds: float
    cpus: Sequence[str] = ("4",)  #: of its pods; several are a gang
    nodes: Sequence[str] = ()  #: that it may use; none: all


class Simulation(Machine):
    """Hosts, jobs, and perhaps an adversary. The *eternal* nodes have a pod that never ends."""

    LIMIT = LIMIT

    def __init__(self, nodes: Sequence[str], eternal: Sequence[str]) -> None:
        hosts = {name: host(Policy.SINGLE_NUMA_NODE) for name in (*nodes, *eternal)}
        for name in eternal:
            assert hosts[name].admit(pod(f"eternal-{name}", cpu="4", memory="1Gi")).admitted
        super().__init__(hosts, gate=GateOptions(patience=PATIENCE, unbound=1e6), patience=PATIENCE)
        self.state.kept_nodes.namespaces.limit = self.LIMIT
        self.numbers = count()
        self.ages = count(1)
        self.started: dict[str, float] = {}  #: by the name of a job
        self.running: dict[str, float] = {}  #: uid → when it ends
        self.jobs: dict[str, Job] = {}  #: by uid of a pod

    @property
    def holders(self) -> list[NodeHolder]:
        return self.state.kept_nodes._holders()  # noqa: SLF001 - they have no other place

    def create(self, job: Job, age: int) -> list[PodFacts]:
        group = GroupKey(job.namespace, job.name, "test") if len(job.cpus) > 1 else None
        if group:
            self.facts.minimums[group] = len(job.cpus)
        created = []
        for cpu in job.cpus:
            made = replace(pod(f"{job.name}-{next(self.numbers)}", cpu=cpu, memory="1Gi"), namespace=job.namespace)
            self.facts.forbidden[made.uid] = set(self.hosts) - set(job.nodes or self.hosts)
            self.jobs[made.uid] = job
            created.append(self.wait(made, age, group=group))
        if group:
            self.handle(events.GroupChanged(group))
        return created

    def step(self) -> None:
        for uid in [uid for uid, end in self.running.items() if end <= self.now]:
            node = self.facts.bound[uid][1]
            del self.running[uid]
            self.hosts[node].release(uid)
            self.gone(uid)
            self.report(node)
        while (done := self.place_next()) is not None:
            for each in done:
                if isinstance(each, WriteRelease):
                    self.start(each.pod)
        self.pass_time(STEP)

    def start(self, released: Pod) -> None:
        job = self.jobs[released.uid]
        assert job.namespace != ADVERSARY
        (node,) = self.state.assumptions.nodes[released.uid]
        self.handle(events.ReleaseWritten(released.uid))
        self.bind(released)
        assert self.hosts[node].admit(released).admitted
        self.report(node)
        self.started[job.name] = self.now
        self.running[released.uid] = self.now + job.seconds


class Adversary:
    """Keeps so many gangs and pods waiting that cannot start, and creates others whenever it loses its nodes."""

    def __init__(self, random: Random, machine: Simulation, wishes: Sequence[Sequence[str]]) -> None:
        self.random = random
        self.machine = machine
        self.wishes = wishes  #: nodes that its gangs need, each with a pod that never ends
        self.numbers = count()
        self.waiting: dict[int, list[PodFacts]] = {}  #: by place in its wishes

    def act(self) -> None:
        """Delete what is not kept, or anything, and replace it; it is older than all others."""
        for place, nodes in enumerate(self.wishes):
            if place in self.waiting and self.random.random() < 0.02:
                for facts in self.waiting.pop(place):
                    self.machine.gone(facts.uid)
            if place not in self.waiting:
                cpus = ["4"] * len(nodes)
                job = Job(f"wish-{next(self.numbers)}", ADVERSARY, self.machine.now, 0.0, cpus, nodes)
                self.waiting[place] = self.machine.create(job, 0)


@dataclass(frozen=True)
class Scenario:
    nodes: Sequence[str]
    eternal: Sequence[str]
    jobs: Callable[[Random], Iterator[Job]]
    wishes: Sequence[Sequence[str]]


def stream(random: Random, seconds: float, until: float, **job: Sequence[str]) -> Iterator[Job]:
    """Jobs that come every so many *seconds*, and have to wait for each other now and then."""
    comes = 0.0
    for number in count():
        comes += random.uniform(0, 2 * seconds)
        if comes > until:
            return
        yield Job(f"job-{number}", random.choice("bc"), comes, random.uniform(0.5, 1.7) * 20, **job)


def overtaken_gang(random: Random) -> Iterator[Job]:
    """A gang that needs all of a node, while small pods overlap there."""
    yield Job("gang", "honest", 30.0, 50.0, ("3", "3"), ("a",))
    for number in range(60):
        yield Job(f"small-{number}", "honest", 10.0 * number, random.uniform(15, 25), ("3",), ("a",))


WORKERS = [f"worker-{number:02}" for number in range(12)]
ETERNAL = ["eternal-0", "eternal-1"]
SCENARIOS = {
    "gangs that need every node": Scenario(
        WORKERS,
        ETERNAL,
        lambda random: stream(random, 1.8, SECONDS / 3),
        [[*WORKERS, *ETERNAL], [*WORKERS, *ETERNAL], ETERNAL],
    ),
    "a gang that needs the only node of others": Scenario(
        ["a"],
        ETERNAL,
        lambda random: stream(random, 20.0, SECONDS, nodes=("a",)),
        [["a", "eternal-0"], ["a", "eternal-1"]],
    ),
    "gangs that have all that a gang can have": Scenario(["a"], ETERNAL, overtaken_gang, [ETERNAL, ETERNAL]),
}


def simulate(scenario: Scenario, seed: int, *, with_adversary: bool, latest: float = 3 * SECONDS) -> dict[str, float]:
    """Return when each job started; after the *latest* time, the others have not."""
    machine = Simulation(scenario.nodes, scenario.eternal)
    adversary = Adversary(Random(seed), machine, scenario.wishes)
    coming = sorted(scenario.jobs(Random(seed)), key=lambda job: job.comes, reverse=True)
    names = {job.name for job in coming}
    while machine.now < latest and (coming or machine.started.keys() < names):
        if with_adversary:
            adversary.act()
        while coming and coming[-1].comes <= machine.now:
            machine.create(coming.pop(), next(machine.ages))
        delaying = [holder for holder in machine.holders if holder.delayed]
        machine.step()
        check_shares(machine, delaying)
    return {name: machine.started.get(name, float("inf")) for name in names}


def check_shares(machine: Simulation, delaying: Sequence[NodeHolder]) -> None:
    """A namespace has one holder, and those that have been *delaying* others for a while keep a tenth of the nodes."""
    namespaces = [holder.namespace for holder in machine.holders]
    assert len(namespaces) == len(set(namespaces))
    for holder in delaying:
        kept = [each for each in machine.state.kept_nodes._kept.values() if each.holder is holder]  # noqa: SLF001
        assert len(kept) <= max(len(machine.jobs[holder.uid].nodes) // 10, 1)


@cache
def undisturbed(name: str, seed: int) -> dict[str, float]:
    """Return when each job starts without the adversary, under all rules."""
    return simulate(SCENARIOS[name], seed, with_adversary=False)


def delay(name: str, seed: int) -> float:
    """Return by how much the adversary delays a job, at most."""
    without = undisturbed(name, seed)
    last = max(without.values())
    assert last < 3 * SECONDS
    attacked = simulate(SCENARIOS[name], seed, with_adversary=True, latest=last + 3 * LIMIT)
    return max(attacked[job] - without[job] for job in without)


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("number", range(rounds(1, soak=50)))
def test_others_wait_for_twice_the_limit_longer_at_most(name, number):
    assert delay(name, SEED * 1000 + number) <= 2 * LIMIT + SLACK


ALL, ONLY, SLOTS = SCENARIOS
RULES = [
    pytest.param(kept_nodes, "NAMESPACE_HOLDERS", 3, ALL, id="one holder of a namespace"),
    pytest.param(kept_nodes, "GANG_SHARE", 1.0, ALL, id="a tenth of the nodes"),
    pytest.param(namespace_patience, "BACK_OFF", 1, ONLY, id="exponential back-off"),
    pytest.param(Simulation, "LIMIT", float("inf"), ONLY, id="the limit for kept nodes"),
    pytest.param(Simulation, "LIMIT", float("inf"), SLOTS, id="the limit for all that are kept at a time"),
]


@pytest.mark.parametrize(("owner", "constant", "value", "name"), RULES)
def test_without_a_rule_a_check_fails(monkeypatch, owner, constant, value, name):
    undisturbed(name, 1000)
    monkeypatch.setattr(owner, constant, value)
    with pytest.raises(AssertionError):
        assert delay(name, 1000) <= 2 * LIMIT + SLACK
