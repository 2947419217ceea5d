"""The best nodes for a pod, and a node with pods on it."""

from alignup.placement.free_capacity import DEVICE, FreeCapacity
from alignup.placement.score import PlacementScore
from alignup.placement.verdict import Verdict, VerdictKind
from alignup.schedule.best_nodes import choose_best, describe_score, place_pods
from alignup.schedule.pod_answers import NodeAnswer, group_by_answer
from tests.align.hosts import pod
from tests.observe.kubelets import ObservedKubelet


def score(*, nodes: int = 1, stranded: int = 0, approximate: bool = False) -> PlacementScore:
    return PlacementScore(
        preferred=True,
        nodes=nodes,
        distance=10 if nodes == 1 else 15.5,
        free_capacity=FreeCapacity({}, 0, {}),
        stranded=stranded,
        devices_beside=0,
        cpus_beside=1,
        approximate=approximate,
    )


def test_the_nodes_with_the_highest_scores_come_first_then_by_name():
    admits = {"c": score(), "b": score(nodes=2), "a": score(), "d": score(stranded=DEVICE)}
    answers = [NodeAnswer(name, Verdict(VerdictKind.ADMITS, score=value)) for name, value in admits.items()]
    answers.append(NodeAnswer("full", Verdict(VerdictKind.REJECTS, reason="full")))
    answers.append(NodeAnswer("cordoned", Verdict(VerdictKind.ADMITS, score=score()), ("unschedulable",)))

    assert [answer.node for answer in choose_best(group_by_answer(answers))] == ["a", "c", "b"]


def test_a_score_is_explained_part_by_part():
    assert describe_score(score())[:4] == [
        "every hint preferred (25)",
        "on 1 NUMA node (20)",
        "local (10)",
        "strands no device (30)",
    ]
    assert "mean distance 15.5 (6.45)" in describe_score(score(nodes=2))
    assert "strands 1.5 devices (12)" in describe_score(score(stranded=3 * DEVICE // 2))
    assert "uses 2 stranded devices (30)" in describe_score(score(stranded=-2 * DEVICE))
    assert describe_score(score(approximate=True))[-1].startswith("the placement is not exactly known")


def test_a_node_is_described_with_pods_that_are_not_there():
    host = ObservedKubelet().host

    placed = place_pods("a", host, [pod("x", cpu="3"), pod("y", cpu="2"), pod("z", cpu="4")])

    assert placed is not None
    assert list(placed.uids) == ["x", "y"]
    assert set(placed.machine["holders"]) == {"x", "y"}
    assert host.ledger.pods == {}
    assert place_pods("a", host, [pod("w", cpu="64")]) is None
