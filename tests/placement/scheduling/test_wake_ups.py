"""Pods that were refused to their schedulers, and are woken when there is room."""

from alignup.align.workload import Pod
from alignup.placement.scheduling import events
from alignup.placement.scheduling.facts import GroupKey, WaitState
from alignup.placement.scheduling.instructions import AnswerNodes, WakePod
from tests.align.hosts import host, pod
from tests.placement.scheduling.machine import Machine
from tests.strategies_pods import container

NODE, OTHER = "host-a", "host-b"


def test_a_pod_that_no_kubelet_aligns_is_woken_when_a_pod_on_its_way_does_not_come():
    """Its scheduler saw room by the Node object all the time, so nothing else makes it try again."""
    machine = Machine({NODE: host()})
    coming = machine.wait(pod("coming", cpu="4"), state=WaitState.OTHER)
    machine.handle(events.BindingAsked(1, coming, NODE))
    unaligned = Pod(name="unaligned", uid="unaligned", containers=(container("app", {"cpu": "3500m"}),))
    facts = machine.wait(unaligned, 1, state=WaitState.UNSCHEDULABLE)
    (refused,) = machine.handle(events.NodesAsked(facts, (NODE,)))
    assert isinstance(refused, AnswerNodes)
    assert not refused.offered

    machine.handle(events.BindingFailed(1, "no"))

    assert machine.handle(events.WakeNext()) == [WakePod("unaligned", "default", "unaligned", NODE)]


def test_a_pod_of_a_gang_that_another_process_refused_is_woken_also_if_no_kubelet_aligns_it():
    machine = Machine({NODE: host()})
    machine.state.wake_ups.adopts = True
    unaligned = Pod(name="unaligned", uid="unaligned", containers=(container("app", {"cpu": "500m"}),))
    alone = Pod(name="alone", uid="alone", containers=(container("app", {"cpu": "500m"}),))

    machine.wait(unaligned, state=WaitState.UNSCHEDULABLE, group=GroupKey("default", "gang", "test"))
    machine.wait(alone, state=WaitState.UNSCHEDULABLE)  # nothing but kube-scheduler's own checks can have refused it
    machine.report(NODE)

    assert machine.handle(events.WakeNext()) == [WakePod("unaligned", "default", "unaligned", NODE)]
    assert machine.handle(events.WakeNext()) == []


def test_a_pod_that_another_process_refused_is_woken_for_any_node_also_while_a_node_is_kept_for_it():
    machine = Machine({NODE: host(), OTHER: host()})
    machine.state.wake_ups.adopts = True
    for name in ("first", "second"):  # one on each NUMA node
        machine.hosts[NODE].apply(machine.hosts[NODE].decide(pod(name, cpu="2")))
    machine.report(NODE)
    machine.wait(pod("waiting", cpu="3"), state=WaitState.UNSCHEDULABLE)

    machine.state.wake_ups.await_room("waiting", (NODE,))
    machine.report(OTHER)

    assert [machine.handle(events.WakeNext()) for _ in range(2)] == [
        [],
        [WakePod("waiting", "default", "waiting", OTHER)],
    ]
