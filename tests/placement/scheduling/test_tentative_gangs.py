"""Gangs of schedulers that ask, in the scheduling state."""

from alignup.align.workload import Pod
from alignup.placement.scheduling import events
from alignup.placement.scheduling.facts import GroupKey, WaitState
from tests.align.hosts import host, pod
from tests.placement.scheduling.machine import Machine
from tests.strategies_pods import container

NODE = "a"


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
