"""Gangs of schedulers that ask, in the scheduling state."""

from alignup.align.workload import Pod
from alignup.placement.scheduling import events
from alignup.placement.scheduling.facts import GroupKey, WaitState
from alignup.placement.scheduling.instructions import Instruction, KeepNode, WriteBinding
from alignup.placement.scheduling.tentative_gangs import UNSEEN_SECONDS, GangPlace
from tests.align.hosts import host, pod
from tests.placement.scheduling.machine import Machine
from tests.strategies_pods import container

NODE = "a"


def bound(instructions: list[Instruction]) -> list[str]:
    return [instruction.pod.uid for instruction in instructions if isinstance(instruction, WriteBinding)]


def test_a_pod_without_alignment_that_is_being_bound_counts_once_for_its_gang():
    machine, group = Machine({NODE: host()}), GroupKey("default", "gang", "test")
    machine.facts.minimums[group] = 3
    unaligned = Pod(name="unaligned", uid="unaligned", containers=(container("app", {"cpu": "100m"}),))
    first = machine.wait(unaligned, state=WaitState.OTHER, group=group)
    machine.handle(events.BindingAsked(1, first, NODE))
    assert "unaligned" in machine.state.assumptions
    large = [machine.wait(pod(name, cpu="4"), state=WaitState.OTHER, group=group) for name in ("large-1", "large-2")]

    place = machine.state.gangs.place(large[0], (NODE,))

    assert place is not None
    assert place.problem.startswith("gang default/gang: 2 of 3 pods fit together")


def test_a_pod_that_is_gone_does_not_count_for_its_gang_though_its_scheduler_asks_about_it():
    machine, group = Machine({NODE: host()}), GroupKey("default", "gang", "test")
    machine.facts.minimums[group] = 2
    gone, other = (machine.wait(pod(name, cpu="1"), state=WaitState.OTHER, group=group) for name in ("gone", "other"))
    machine.gone("gone")

    for _ in range(2):
        for facts in (gone, other):
            place = machine.state.gangs.place(facts, (NODE,))
            assert place is not None
            assert place.problem == "gang default/gang: 1 of 2 pods exist"
        machine.pass_time(UNSEEN_SECONDS - 1)

    machine.pass_time(1.0)
    assert not machine.state.gangs._gone  # noqa: SLF001 - nothing else shows that it is forgotten


def test_a_pod_waits_for_others_of_its_gang_if_a_waiting_pod_would_not_fit_after_it():
    """The gang has places that leave room for that pod, but only in the order in which they were decided."""
    node = host()
    for name, cpu in (("ended", "3"), ("on-node-1", "2")):
        node.admit(pod(name, cpu=cpu))
    node.release("ended")
    node.admit(pod("on-node-0", cpu="1"))
    machine, group = Machine({NODE: node}), GroupKey("default", "gang", "test")
    machine.wait(pod("holder", cpu="3"), state=WaitState.UNSCHEDULABLE)
    assert KeepNode in map(type, machine.pass_time(60.0))
    machine.facts.minimums[group] = 2
    large, small = (
        machine.wait(pod(name, cpu=cpu), 1, state=WaitState.OTHER, group=group)
        for name, cpu in (("large", "2"), ("small", "1"))
    )
    assert machine.state.gangs.place(large, (NODE,)) == GangPlace(NODE)

    assert bound(machine.handle(events.BindingAsked(1, small, NODE))) == []
    assert bound(machine.handle(events.BindingAsked(2, large, NODE))) == ["large"]
    assert bound(machine.handle(events.BindingWritten(2))) == ["small"]

    for uid in ("on-node-0", "on-node-1"):
        node.release(uid)
    for name, cpu in (("large", "2"), ("small", "1")):
        node.admit(pod(name, cpu=cpu))
    assert node.decide(pod("holder", cpu="3")).admitted
