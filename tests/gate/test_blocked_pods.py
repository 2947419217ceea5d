"""Many different pods that no node admits: they hold up no other pod. Work is counted, not timed."""

from dataclasses import replace

import pytest

from alignup.documents.codec import convert
from alignup.gate.blocked_pods import DELAY, MAX_WAITING_EVENTS
from alignup.gate.controller import GateController, GateOptions
from alignup.gate.pod_queue import MAX_FAILURES
from alignup.kubernetes.api import Change, EventType
from alignup.kubernetes.api.objects import ApiPod
from alignup.schedule.live_cluster import GATE
from tests.align.hosts import pod
from tests.deadlines import until
from tests.gate.simulated import settle
from tests.observe.api_objects import api_pod

pytestmark = pytest.mark.anyio

BLOCKED = 200
LATER = pod("later", cpu="4", memory="1Gi")


class CountedController(GateController):
    """A controller whose tries a test makes."""

    def arrive(self, asked):
        document = api_pod(asked, phase="Pending", schedulingGates=[{"name": GATE}])
        self.see(convert(document, ApiPod))

    def see(self, api):
        self._running = True  # it follows the nodes
        self._pod_changed(Change(EventType.ADDED, api))

    def try_until(self, condition):
        """Return how many tries it took."""
        before = self.queue.tries
        while not condition():
            assert self.try_next() is not None
        return self.queue.tries - before

    def try_all(self):
        before = self.queue.tries
        while self.try_next() is not None:
            pass
        return self.queue.tries - before

    def explain_next(self):
        self._blocked.explain_next()
        return self._events.waiting


@pytest.fixture
async def controller(clocked, live):
    """A controller with many blocked pods; all are larger than a NUMA node, and no two are alike."""
    made = CountedController(clocked, live, options=GateOptions(parallel=BLOCKED))
    for number in range(BLOCKED):
        made.arrive(pod(f"blocked-{number}", cpu="5", memory=f"{1 + number}Mi"))
    assert made.try_all() == BLOCKED
    assert len(made.queue.blocked) == BLOCKED
    return made


async def test_another_pod_is_tried_at_once_and_its_release_tries_no_blocked_pod_again(cluster, controller, live):
    cluster.paused = {"later"}
    cluster.gate(LATER)
    await until(lambda: live.find_pod("default", "later"))
    controller.see(live.find_pod("default", "later"))

    assert controller.try_until(lambda: LATER.uid in controller.releases) == 1
    await until(lambda: not cluster.gates())
    await settle()
    assert controller.try_all() == 0


@pytest.mark.parametrize("namespace", ["default", "ml"])
async def test_another_pod_is_tried_after_few_blocked_pods_when_a_node_has_changed(controller, live, namespace):
    asked, choose = [], live.choose

    def counted(pod, nodes):
        asked.append(nodes)
        return choose(pod, nodes)

    live.choose = counted
    controller.queue.nodes_changed(["a"])
    later = replace(LATER, namespace=namespace)
    controller.arrive(later)

    tries = controller.try_until(lambda: later.uid in controller.releases)
    assert tries <= MAX_FAILURES + 1
    assert sum(map(len, asked[:-1])) <= MAX_FAILURES  # of the blocked pods, only about the node that changed
    assert controller.try_all() == BLOCKED + 1 - tries  # every blocked pod is tried again, once


async def test_a_change_while_blocked_pods_are_tried_again_counts_for_all_of_them(controller):
    controller.queue.nodes_changed(["a"])
    for _ in range(BLOCKED // 2):
        controller.try_next()
    controller.queue.nodes_changed(["b"])

    assert controller.try_all() == BLOCKED // 2 + BLOCKED


async def test_the_next_pod_of_a_class_whose_first_pod_goes_is_tried_again(controller):
    """The first one is deleted after a node has changed, and before it was tried again."""
    first, second = (pod(name, cpu="5", memory="1Mi") for name in ("blocked-0", "second"))
    controller.arrive(second)
    assert controller.try_all() == 0
    controller.queue.nodes_changed(["a"])
    controller.try_next()
    controller.queue.remove(first.uid)

    controller.try_all()
    assert second.uid in controller.queue
    assert controller.queue.tries >= 2 * BLOCKED


async def test_a_pod_that_comes_first_in_its_class_while_others_are_tried_again_is_tried(controller):
    controller.queue.nodes_changed(["a"])
    for _ in range(BLOCKED // 2):
        controller.try_next()
    controller.arrive(pod("a-first", cpu="5", memory="999Mi"))  # alone in its class
    last = max((waiting.pod for waiting in controller.queue if waiting.pod.name != "a-first"), key=lambda pod: pod.name)
    controller.arrive(replace(last, name="a-second", uid="a-second"))

    before = controller.queue.tries
    controller.try_all()
    assert controller.queue.tries - before >= BLOCKED // 2 + 1 + BLOCKED  # another round, because of the second one


async def test_pods_are_explained_one_after_the_other_and_not_before_their_events_can_be_written(controller, clock):
    clock.now += DELAY

    assert [controller.explain_next() for _ in range(3)] == [1, 2, 3]
    for _ in range(BLOCKED):
        controller.explain_next()
    assert controller.explain_next() == MAX_WAITING_EVENTS + 1
