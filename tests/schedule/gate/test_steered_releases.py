"""Pods with markers behind the gate: they are steered before their release."""

import pytest

from alignup.align.workload.names import MARKER, NUMA_ANNOTATION
from alignup.kubernetes.api import PODS
from alignup.placement.scheduling.gate import GatedPodState
from alignup.placement.scheduling.pod_steering import WAIT_SECONDS
from alignup.placement.steered import STEERED_ANNOTATION
from alignup.schedule.gate.controller import GateController
from alignup.schedule.steering_writer import SteeringWriter
from tests.align.hosts import pod
from tests.deadlines import SECONDS, until
from tests.schedule.observers import ScriptedObserver, add_marked_node, marked

pytestmark = pytest.mark.anyio

SMALL = marked(pod("small", cpu="2", memory="1Gi", annotations={NUMA_ANNOTATION: "1"}))
NEXT = marked(pod("next", cpu="2", memory="1Gi"))


@pytest.fixture
async def observer(cluster, client, follow):
    """The observer of node ``a``, which has markers; the scheduler binds nothing by itself."""
    add_marked_node(cluster, "a")
    cluster.change("a", allocatable={MARKER: "16"})
    cluster.paused = {"small", "next"}
    made = ScriptedObserver(cluster, client)
    follow(made.run())
    return made


@pytest.fixture
async def steering(observer, live, client, follow):
    writer, steering = SteeringWriter(client, live), live.scheduling.steering
    writer.write_seconds = steering.ready_seconds = SECONDS
    follow(live.steering_instructions.run())
    await until(lambda: live.steering_instructions.synced and len(live.cluster.steered(SMALL, "a")) == 2)
    return steering


@pytest.fixture
async def controller(steering, clocked, live, follow):
    made = GateController(clocked, live)
    follow(made.run())
    return made


async def bind(cluster, observer, live, name):
    """The scheduler binds a released pod, and the kubelet admits it with the markers that it has."""
    await cluster.client.bind(PODS.at(name, namespace="default"), "a")
    observer.admit("a")
    await until(lambda: name in live.cluster.record("a").ledger.pods)


async def test_a_pod_is_released_when_its_numa_node_is_the_only_choice(cluster, controller, observer, live):
    cluster.gate(SMALL)
    await until(lambda: cluster.gates() == {})

    assert observer.specs == [("a", "small", "1")]
    annotations = cluster.document("small")["metadata"]["annotations"]
    assert annotations[STEERED_ANNOTATION] == f"steered to NUMA node 1 (annotation {NUMA_ANNOTATION})"
    cluster.gate(NEXT)
    await until(lambda: controller.gate.queue.blocked)  # until the first is confirmed
    await bind(cluster, observer, live, "small")
    assert observer.numa_nodes("a", "small") == 2

    await until(lambda: cluster.gates() == {})
    await bind(cluster, observer, live, "next")
    assert observer.specs == [("a", "small", "1"), ("a", "next", "1")]
    assert live.metrics.predictions.totals == {"as_predicted": 2}


async def test_a_late_observer_stops_no_release(cluster, controller, observer, live, clock):
    observer.answer, live.scheduling.steering.silent_seconds = "", 0.0
    withdrawals = live.scheduling.steering.withdrawals

    def is_written(last):
        """Whether an instruction after the *last* generation is written; if not, time passes."""
        if "a" in withdrawals and withdrawals["a"].uid and withdrawals["a"].generation > last:
            return True
        clock.advance(WAIT_SECONDS / 10, controller)
        return False

    async def wait_too_long(last):
        """The observer does not answer."""
        await until(lambda: is_written(last))
        clock.advance(2 * SECONDS, controller)
        return withdrawals["a"].generation

    cluster.gate(SMALL)
    generation = await wait_too_long(0)
    await until(lambda: controller.gate.state_of("small") is GatedPodState.PUT_OFF)
    await wait_too_long(generation)
    await until(lambda: cluster.gates() == {})

    assert STEERED_ANNOTATION not in cluster.document("small")["metadata"]["annotations"]
    await bind(cluster, observer, live, "small")
    assert live.metrics.predictions.totals == {"as_predicted": 1}


async def test_a_pod_is_not_released_before_the_host_state_shows_the_markers_of_its_node(
    cluster, controller, observer, live, clock
):
    cluster.change("b", allocatable={MARKER: "16"})
    cluster.change("a", allocatable={MARKER: "0"})
    await until(lambda: [live.cluster_facts.has_markers(name) for name in "ab"] == [False, True])
    cluster.gate(SMALL)
    await until(lambda: controller.gate.state_of("small") is GatedPodState.PUT_OFF)
    assert live.assumed == {}
    assert cluster.gates() != {}
    add_marked_node(cluster, "b")
    await until(lambda: len(live.cluster.steered(SMALL, "b")) == 2)
    clock.advance(2.0, controller)

    await until(lambda: cluster.gates() == {})

    assert observer.specs == [("b", "small", "1")]
    assert STEERED_ANNOTATION in cluster.document("small")["metadata"]["annotations"]


async def test_a_pod_that_is_deleted_takes_the_instruction_back(cluster, controller, observer, live):
    cluster.gate(SMALL)
    await until(lambda: cluster.gates() == {})
    cluster.server.remove("pods", "small")
    await until(lambda: observer.specs == [("a", "small", "1"), ("a", "", "")])
    assert live.assumed == {}
