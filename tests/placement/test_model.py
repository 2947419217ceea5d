"""No pod is sent to a kubelet that rejects it, whatever the delays: a simulated cluster under load.

Small in ``make test``, tens of thousands of placements in ``make soak``; set ``ALIGNUP_PLACEMENTS`` to the number of
each run, for example 100,000 with ``-k no_kubelet_rejects``. The figures in docs/why/placement.md and
docs/scheduling.md are those of ``ALIGNUP_PLACEMENTS=3000``.
"""

import os
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from alignup.align.host import Host
from alignup.align.workload import Container, Pod
from alignup.placement.host_report import Cause
from alignup.simulate.schedulers import AggregateScheduler, Scoring, TotalsScheduler
from tests.align.hosts import GPU, make_host
from tests.effort import SEED, did, rounds
from tests.placement.model import CRITICAL, Disturbances, Outcome, Simulation
from tests.placement.schedulers import CountingTotals, Predicting
from tests.strategies_pods import container, guaranteed

NARROW, WIDE = "pack:4 numa:1 core:2 pu:1", "pack:2 numa:1 core:4 pu:1"
PLACEMENTS = int(os.environ.get("ALIGNUP_PLACEMENTS", rounds(60, soak=10_000)))


def hosts() -> dict[str, Host]:
    """Hosts with four NUMA nodes of two CPUs, and with two nodes of four."""
    return {
        f"{shape}-{number}": make_host(shape=text) for shape, text in (("n", NARROW), ("w", WIDE)) for number in (0, 1)
    }


def workload(seed: int) -> Iterator[tuple[Pod, float]]:
    """Pods and how many seconds each runs."""
    random = Random(seed)
    while True:
        asked = {"cpu": str(random.choice((1, 1, 2, 2, 3, 4))), "memory": f"{random.choice((64, 1024, 6000))}Mi"}
        containers: tuple[Container, ...] = (guaranteed("app", asked | ({GPU: "1"} if random.random() < 0.3 else {})),)
        kind = random.random()
        if kind < 0.15:
            containers = (container("app", {"cpu": "500m"}),)
        elif kind < 0.3:
            containers = (*containers, guaranteed("more", {"cpu": "1", "memory": "64Mi"}))
        priority = CRITICAL if kind < 0.02 else None
        yield Pod(name="pod", containers=containers, priority=priority), random.uniform(2, 20)


def run_ours(
    seed: int,
    *,
    placements: int = PLACEMENTS,
    services: int = 1,
    max_unconfirmed: int | None = 1,
    **disturbances: float,
) -> tuple[Simulation, Outcome, Counter[str]]:
    causes: Counter[str] = Counter()
    simulation = Simulation(
        hosts(),
        lambda: Predicting(causes, max_unconfirmed=max_unconfirmed),
        workload(seed),
        seed=seed,
        disturbances=Disturbances(**disturbances),
        services=services,
    )
    return simulation, simulation.run(placements), causes


@pytest.mark.soak
def test_no_kubelet_rejects_a_pod_that_was_predicted_to_fit():
    simulation, outcome, causes = run_ours(SEED, schedulers=0.1)

    assert simulation.drain() == 0, "pods were starved"
    count_causes("with restarts of the scheduler", outcome, causes)
    assert (outcome.rejections, causes) == (0, {})


@pytest.mark.soak
@pytest.mark.parametrize(
    ("interference", "known"),
    [
        ({"services": 3}, {Cause.FOREIGN_POD}),
        ({"foreign": 0.3}, {Cause.FOREIGN_POD}),
        ({"critical": 0.5}, {Cause.FOREIGN_POD, Cause.PREEMPTION}),
        ({"restarts": 0.1}, {Cause.KUBELET_RESTART}),
        ({"devices": 0.2}, {Cause.DEVICES}),
        ({"configurations": 0.1}, {Cause.CONFIGURATION, Cause.KUBELET_RESTART}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_one_kind_of_interference_has_its_own_causes(interference, known):
    simulation, outcome, causes = run_ours(SEED + 2, placements=max(60, PLACEMENTS // 3), **interference)

    assert simulation.drain() == 0, "pods were starved"
    count_causes(f"with {' and '.join(interference)}", outcome, causes)
    assert causes.keys() <= known
    assert causes.total() == outcome.rejections, "a rejection was counted twice or not at all"


@pytest.mark.soak
def test_every_rejection_has_one_of_the_known_causes():
    simulation, outcome, causes = run_ours(
        SEED + 1,
        services=2,
        foreign=0.3,
        restarts=0.05,
        devices=0.1,
        schedulers=0.05,
        critical=0.1,
        configurations=0.02,
    )

    assert simulation.drain() == 0, "pods were starved"
    count_causes("with all interference", outcome, causes)
    assert causes.keys().isdisjoint({Cause.UNEXPLAINED, Cause.APPROXIMATE})
    # A service does not learn of rejections while it restarts.
    assert 0 <= outcome.rejections - causes.total() <= outcome.interruptions


def count_causes(how: str, outcome: Outcome, causes: Counter[str]) -> None:
    did(f"placements {how}", outcome.placements)
    did(f"placements {how}: rejected", outcome.rejections)
    if outcome.preempted:
        did(f"placements {how}: pods preempted by kubelets", outcome.preempted)
    if outcome.interruptions:
        did(f"placements {how}: restarts of schedulers and watches", outcome.interruptions)
    for cause, number in causes.items():
        did(f"placements {how}: rejected, cause {cause}", number)


@pytest.mark.soak
def test_others_are_rejected_more_often_and_use_less():
    """The same pods with a scheduler that knows totals of hosts, and one that knows totals of NUMA nodes."""

    def blind() -> CountingTotals:
        return CountingTotals(hosts(), lambda known: TotalsScheduler(known, Scoring.LEAST_ALLOCATED))

    def aggregate() -> CountingTotals:
        return CountingTotals(hosts(), AggregateScheduler, reads_reports=True)

    outcomes = {"Alignup": run_ours(SEED)[1]}
    for name, make in (("totals of hosts", blind), ("totals of NUMA nodes", aggregate)):
        outcomes[name] = Simulation(hosts(), make, workload(SEED), seed=SEED).run(PLACEMENTS)
    for name, outcome in outcomes.items():
        count_use(f"by {name}", outcome)
    assert outcomes["Alignup"].rejections == 0
    assert outcomes["totals of hosts"].rejections > PLACEMENTS / 20


@pytest.mark.soak
@pytest.mark.parametrize("unconfirmed", [2, None])
def test_more_unconfirmed_pods_on_a_host_are_a_risk(unconfirmed):
    simulation, outcome, _ = run_ours(SEED, max_unconfirmed=unconfirmed)

    count_use(f"with {unconfirmed or 'any number of'} unconfirmed pods per host", outcome)
    assert outcome.rejections <= PLACEMENTS / 20
    assert simulation.drain() == 0, "pods were starved"


def count_use(how: str, outcome: Outcome) -> None:
    cpus = sum(host.cpus.allocatable.bit_count() for host in hosts().values())
    did(f"placements {how}", outcome.placements)
    did(f"placements {how}: rejected", outcome.rejections)
    did(f"placements {how}: percent of CPUs in use", round(100 * outcome.utilization(cpus)))
    did(f"placements {how}: simulated seconds", round(outcome.seconds))
