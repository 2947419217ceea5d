"""Many different pods that no node admits: they hold up no other pod. Work is counted, not timed."""

from dataclasses import replace

import pytest

from alignup.align.settings import Policy
from alignup.placement.scheduling import events
from alignup.placement.scheduling.blocked_explanations import EXPLAIN_SECONDS
from alignup.placement.scheduling.instructions import WriteEvent, WriteRelease
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.pod_queue import MAX_FAILURES
from tests.align.hosts import host, pod
from tests.placement.scheduling.machine import Machine

BLOCKED = 200
LATER = pod("later", cpu="4", memory="1Gi")


class BlockedPods(Machine):
    """Two nodes, and pods that are larger than a NUMA node, of which no two are alike."""

    def __init__(self):
        hosts = {name: host(Policy.SINGLE_NUMA_NODE) for name in "ab"}
        super().__init__(hosts, gate=GateOptions(parallel=BLOCKED))
        for number in range(BLOCKED):
            self.wait(pod(f"blocked-{number}", cpu="5", memory=f"{1 + number}Mi"))
        assert self.try_all() == BLOCKED
        assert len(self.queue.blocked) == BLOCKED

    @property
    def queue(self):
        return self.gate.queue

    def try_until(self, condition):
        """Return how many tries it took."""
        before = self.queue.tries
        while not condition():
            assert self.place_next() is not None
        return self.queue.tries - before

    def try_all(self):
        before = self.queue.tries
        while self.place_next() is not None:
            pass
        return self.queue.tries - before

    def is_released(self, asked):
        return asked.uid in self.gate.releases


@pytest.fixture
def machine():
    return BlockedPods()


def test_another_pod_is_tried_at_once_and_its_release_tries_no_blocked_pod_again(machine):
    machine.wait(LATER)

    assert machine.try_until(lambda: machine.is_released(LATER)) == 1
    machine.handle(events.ReleaseWritten(LATER.uid))
    assert machine.try_all() == 0


@pytest.mark.parametrize("namespace", ["default", "ml"])
def test_another_pod_is_tried_after_few_blocked_pods_when_a_node_has_changed(machine, namespace, monkeypatch):
    asked, rank = [], machine.state.assumptions.rank

    def counted(pod, nodes):
        asked.append(nodes)
        return rank(pod, nodes)

    monkeypatch.setattr(machine.state.assumptions, "rank", counted)
    machine.queue.nodes_changed(["a"])
    later = replace(LATER, namespace=namespace)
    machine.wait(later)

    tries = machine.try_until(lambda: machine.is_released(later))
    assert tries <= MAX_FAILURES + 1
    assert sum(map(len, asked[:-1])) <= MAX_FAILURES  # of the blocked pods, only about the node that changed
    assert machine.try_all() == BLOCKED + 1 - tries  # every blocked pod is tried again, once


def test_a_change_while_blocked_pods_are_tried_again_counts_for_all_of_them(machine):
    machine.queue.nodes_changed(["a"])
    for _ in range(BLOCKED // 2):
        machine.place_next()
    machine.queue.nodes_changed(["b"])

    assert machine.try_all() == BLOCKED // 2 + BLOCKED


def test_the_next_pod_of_a_class_whose_first_pod_goes_is_tried_again(machine):
    """The first one is deleted after a node has changed, and before it was tried again."""
    first, second = (pod(name, cpu="5", memory="1Mi") for name in ("blocked-0", "second"))
    machine.wait(second)
    assert machine.try_all() == 0
    machine.queue.nodes_changed(["a"])
    machine.place_next()
    machine.queue.remove(first.uid)

    machine.try_all()
    assert second.uid in machine.queue
    assert machine.queue.tries >= 2 * BLOCKED


def test_a_pod_that_comes_first_in_its_class_while_others_are_tried_again_is_tried(machine):
    machine.queue.nodes_changed(["a"])
    for _ in range(BLOCKED // 2):
        machine.place_next()
    machine.wait(pod("a-first", cpu="5", memory="999Mi"))  # alone in its class
    others = (waiting.pod for waiting in machine.queue if waiting.pod.name != "a-first")
    machine.wait(replace(max(others, key=lambda pod: pod.name), name="a-second", uid="a-second"))

    before = machine.queue.tries
    machine.try_all()
    assert machine.queue.tries - before >= BLOCKED // 2 + 1 + BLOCKED  # another round, because of the second one


def test_pods_are_explained_one_after_the_other_a_moment_after_they_were_blocked(machine):
    assert machine.handle(events.ExplainNext()) == []
    machine.now += EXPLAIN_SECONDS

    (event,) = machine.handle(events.ExplainNext())
    text = "0/2 nodes will admit the pod: 2 not enough cpu on one NUMA node."
    assert event == WriteEvent("blocked-0", "NoNode", text, frozenset({"not enough cpu on one NUMA node"}))
    (event,) = machine.handle(events.ExplainNext())
    assert event.uid == "blocked-1"


def test_a_pod_that_joins_a_class_that_was_explained_is_explained_at_once(machine):
    machine.now += EXPLAIN_SECONDS
    machine.handle(events.ExplainNext())

    facts = machine.facts.pods["blocked-0"]
    joined = replace(facts, pod=replace(facts.pod, name="joined", uid="joined"))
    (event,) = [each for each in machine.handle(events.PodSeen(joined)) if isinstance(each, WriteEvent)]
    assert event.uid == "joined"
    assert not any(isinstance(each, WriteRelease) for each in machine.handle(events.PlaceNext()))
