"""Kept nodes in the scheduling state: whatever is placed on one meanwhile, its pod fits when the others have ended."""

from copy import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.align.workload.names import NUMA_ANNOTATION
from alignup.placement.scheduling import events
from alignup.placement.scheduling.facts import GroupKey, WaitState
from alignup.placement.scheduling.gate import GatedPodState
from alignup.placement.scheduling.instructions import AnswerNodes, GiveNodeBack, KeepNode, WakePod, WriteSteering
from alignup.placement.scheduling.kept_nodes import MAX_HOLDERS, ROOM_SECONDS, UNUSED_SECONDS
from alignup.placement.scheduling.known_schedulers import ASKED_SECONDS
from alignup.placement.scheduling.options import ExtenderOptions, GateOptions
from alignup.placement.scheduling.reasons import UNKNOWN_SCHEDULER
from alignup.placement.scheduling.tentative_gangs import GangPlace
from tests.align.hosts import host, pod
from tests.effort import examples
from tests.placement.scheduling.machine import Machine
from tests.placement.test_steered import marked, with_marker_devices
from tests.strategies_pods import container

NODE = "a"
PATIENCE = 60.0
WAITS = [WaitState.GATED, WaitState.UNSCHEDULABLE]
policies = st.sampled_from([Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED, Policy.BEST_EFFORT])
requests = st.fixed_dictionaries(
    {"cpu": st.sampled_from("1234"), "memory": st.sampled_from(["1Gi", "9Gi"])},
    optional={"gpu": st.just("1"), "nic": st.just("1")},
)
#: A pod comes, or one of those on the node ends.
happenings = st.lists(requests | st.integers(0, 9), max_size=12)


class KeptNode(Machine):
    """A node that is kept for a pod, and its kubelet; reports come at once."""

    def __init__(self, policy, before, holder):
        made = host(policy)
        for number, request in enumerate(before):
            made.admit(pod(f"before-{number}", **request))
        super().__init__({NODE: made}, patience=PATIENCE)
        self.host, self.before = made, list(made.ledger.pods)
        self.holder, self.came = pod("holder", **holder), 0
        self.wait(self.holder)
        self.kept = any(isinstance(each, KeepNode) for each in self.pass_time(PATIENCE))

    def come(self, request, state):
        """A pod comes to the node if it may and can; whether it may does not depend on more than it takes."""
        self.came += 1
        asked = pod(f"later-{self.came}", **request)
        self.wait(asked, self.came, state=state)
        probe = copy(self.host)
        if not probe.admit(asked).admitted:
            return
        kept_out = self.state.keeps_out(NODE, asked)
        assert kept_out == (not self.fits(probe))
        if not kept_out:
            self.host.admit(asked)
            self.state.assumptions.assume(asked, NODE)
            self.bind(asked)
            self.report(NODE)

    def end(self, place):
        running = list(self.host.ledger.pods)
        if running:
            uid = running[place % len(running)]
            self.host.release(uid)
            self.gone(uid)
            self.report(NODE)

    def fits(self, host):
        """Whether the pod fits when all have ended that were there before."""
        later = copy(host)
        for uid in self.before:
            later.release(uid)
        return later.decide(self.holder).admitted


@given(policies, st.lists(requests, max_size=6), requests, happenings, st.lists(st.sampled_from(WAITS), min_size=12))
@settings(max_examples=examples(100))
def test_the_pod_fits_when_those_have_ended_that_were_there_before(policy, before, holder, happenings, states):
    """Whichever front end the others come by."""
    node = KeptNode(policy, before, holder)
    assert node.kept == node.fits(node.host)
    for happening, state in zip(happenings if node.kept else (), states, strict=False):
        if isinstance(happening, int):
            node.end(happening)
        else:
            node.come(happening, state)
        assert node.fits(node.host)


def full(name="full", *, markers=0):
    made = with_marker_devices(host(Policy.SINGLE_NUMA_NODE), markers)
    for number in range(2):
        assert made.admit(pod(f"{name}-{number}", cpu="3", memory="1Gi")).admitted
    return made


WIDE = pod("wide", cpu="4", memory="1Gi")


def make_room(machine):
    """All pods on the kept node end."""
    for uid in ("full-0", "full-1"):
        machine.hosts[NODE].release(uid)
    machine.report(NODE)


def kept_for(instructions):
    return [(each.node, each.holder) for each in instructions if isinstance(each, KeepNode)]


@pytest.mark.parametrize("waits", WAITS)
@pytest.mark.parametrize("comes", WAITS)
def test_a_node_is_kept_from_later_pods_of_both_front_ends(waits, comes):
    machine = Machine({NODE: full()})
    assert kept_for(machine.handle(events.NodesAsked(machine.wait(WIDE, state=waits), ()))) == []

    assert kept_for(machine.pass_time(PATIENCE)) == [(NODE, "default/wide")]

    machine.hosts[NODE].release("full-1")
    machine.report(NODE)
    late = pod("late", cpu="2", memory="1Gi")
    machine.wait(late, 1, state=comes)
    assert machine.state.refusals(late) == {NODE: "kept for default/wide, which has waited longer"}
    machine.wait(pod("early", cpu="2", memory="1Gi"), -1, state=comes)
    assert machine.state.refusals(pod("early", cpu="2", memory="1Gi")) == {}


def test_a_node_is_kept_only_for_pods_of_schedulers_that_are_named_or_have_asked_lately():
    machine = Machine({NODE: full()})
    facts = machine.wait(WIDE, state=WaitState.UNSCHEDULABLE, scheduler="another")
    assert machine.pass_time(PATIENCE) == []
    assert kept_for(machine.handle(events.NodesAsked(facts, ()))) == []  # a search was made a moment ago
    assert kept_for(machine.pass_time(1.0)) == [(NODE, "default/wide")]
    assert machine.pass_time(ASKED_SECONDS - 2.0) == []

    assert machine.pass_time(1.0) == [GiveNodeBack(NODE, "default/wide", WIDE.uid, UNKNOWN_SCHEDULER)]
    machine.handle(events.ExtenderOpened(ExtenderOptions(schedulers=frozenset({"another"}))))
    assert kept_for(machine.pass_time(PATIENCE)) == [(NODE, "default/wide")]


def test_no_node_is_kept_for_a_gated_pod_whose_scheduler_is_not_known():
    machine = Machine({NODE: full()})
    machine.wait(WIDE, scheduler="nobody")
    assert machine.pass_time(PATIENCE) == []


def test_pods_of_a_gang_whose_scheduler_is_not_known_get_no_places():
    """Else its places would be kept from pods of all priorities."""
    machine = Machine({NODE: host(Policy.SINGLE_NUMA_NODE)})
    group = GroupKey("default", "gang", "test")
    machine.facts.minimums[group] = 2
    schedulers = ("default-scheduler", "nobody")
    asked, other = (
        machine.wait(pod(name, cpu="2", memory="1Gi"), state=WaitState.OTHER, group=group, scheduler=name)
        for name in schedulers
    )

    (answer,) = machine.handle(events.NodesAsked(asked, (NODE,)))

    problem = "gang default/gang: 1 of 2 pods exist, and 1 of other schedulers"
    assert answer == AnswerNodes(unresolvable={NODE: problem})
    assert other.uid not in machine.state.assumptions
    machine.handle(events.NodesAsked(other, (NODE,)))
    assert {asked.uid, other.uid} == machine.state.assumptions.nodes.keys()


@pytest.mark.parametrize(("priority", "is_kept_out"), [(0, True), (5, False)])
def test_a_pod_of_a_higher_priority_is_not_kept_out_by_a_gang_that_has_started(priority, is_kept_out):
    machine = Machine({NODE: full()})
    group = GroupKey("default", "gang", "test")
    machine.facts.minimums[group] = 3
    machine.facts.bound["bound"] = (pod("bound"), "elsewhere")
    machine.facts.group_of["bound"] = group
    for number in range(2):
        machine.wait(pod(f"gang-{number}", cpu="3", memory="1Gi"), 9, group=group)
    assert kept_for(machine.pass_time(PATIENCE)) == [(NODE, "gang default/gang")]

    late = replace(pod("late", cpu="2", memory="1Gi"), priority=priority)
    machine.wait(late, 1)

    assert machine.state.keeps_out(NODE, late) == is_kept_out


def test_nodes_are_kept_for_few_pods_and_one_gang():
    machine = Machine({f"host-{number}": full(f"full-{number}") for number in range(9)})

    def wide(name, namespace):
        return replace(pod(name, cpu="4", memory="1Gi"), namespace=namespace)

    groups = [GroupKey(name, name, "test") for name in ("first", "second")]
    for group in groups:
        members = [
            machine.wait(wide(f"{group.name}-{number}", group.namespace), number, group=group) for number in range(2)
        ]
        machine.facts.minimums[group] = len(members)
    for number, namespace in enumerate("aabc"):
        machine.wait(wide(f"wide-{number}", namespace), 10 + number)

    machine.pass_time(PATIENCE - 1)
    kept = [each for _ in range(9) for each in kept_for(machine.pass_time(1.0))]

    holders = [holder for _, holder in kept]
    assert holders == ["gang first/first"] * 2 + ["a/wide-0", "b/wide-2"]
    assert len(set(holders)) == MAX_HOLDERS


def kept_with_room(*, others=None, **options):
    """A node that is kept for a pod, and has room for more than that pod by now."""
    machine = Machine({NODE: full(), **(others or {})}, **options)
    machine.facts.forbidden["holder"] = set(others or ())
    machine.wait(pod("holder", cpu="3", memory="1Gi"))
    machine.pass_time(PATIENCE)
    make_room(machine)
    return machine


def test_pods_of_a_gang_that_delay_the_holder_together_do_not_share_its_node():
    machine = kept_with_room(gate=GateOptions())
    group = GroupKey("default", "gang", "test")
    machine.facts.minimums[group] = 2
    late = [machine.wait(pod(f"late-{number}", cpu="2", memory="1Gi"), 1, group=group) for number in range(2)]
    assert not any(machine.state.keeps_out(NODE, facts.pod) for facts in late)
    holder = machine.facts.pods.pop("holder")
    machine.gate.queue.remove(holder.uid)

    machine.place_next()

    assert [facts.uid for facts in late if facts.uid in machine.state.assumptions] == []


def test_pods_of_a_gang_that_a_scheduler_asks_about_do_not_delay_the_holder_together():
    machine = kept_with_room()
    group = GroupKey("default", "gang", "test")
    late = [
        machine.wait(pod(f"late-{number}", cpu="2", memory="1Gi"), 1, state=WaitState.OTHER, group=group)
        for number in range(2)
    ]
    machine.facts.minimums[group] = 2
    assert not any(machine.state.keeps_out(NODE, facts.pod) for facts in late)

    place = machine.state.gangs.place(late[0], (NODE,))

    assert place is not None
    assert place.problem.startswith("gang default/gang: 1 of 2 pods fit together")


def test_pods_of_a_gang_that_have_places_on_a_kept_node_count_once_there():
    machine = kept_with_room(others={"b": host()})
    group = GroupKey("default", "gang", "test")
    late = [
        machine.wait(pod(f"late-{number}", cpu="1", memory="1Gi"), 1, state=WaitState.OTHER, group=group)
        for number in range(4)
    ]
    for facts in (late[0], *late[2:]):
        machine.facts.forbidden[facts.uid] = {"b"}
    gangs, nodes = machine.state.gangs, machine.state.assumptions.nodes
    assert gangs.place(late[0], (NODE,)) == GangPlace(NODE)
    assert [nodes[facts.uid] for facts in late] == [(NODE,)] * 4  # with the holder, the node is full

    assert not any(machine.state.keeps_out(NODE, facts.pod) for facts in late)
    assert gangs.turn(late[1], "b") == ""  # those that were not asked about are decided again
    assert [nodes[facts.uid] for facts in late] == [(NODE,), ("b",), (NODE,), (NODE,)]


def test_a_pod_without_alignment_does_not_delay_the_holder_together_with_its_gang():
    """The others get places when a scheduler asks about it, so that the holder would not fit beside all of them."""
    machine = kept_with_room()
    group = GroupKey("default", "gang", "test")
    unaligned = Pod(name="unaligned", uid="unaligned", containers=(container("app", {"cpu": "2500m"}),))
    late = [
        machine.wait(each, 1, state=WaitState.OTHER, group=group)
        for each in (pod("aligned", cpu="2", memory="1Gi"), unaligned)
    ]
    machine.facts.minimums[group] = 2
    assert not any(machine.state.keeps_out(NODE, facts.pod) for facts in late)

    done = machine.handle(events.NodesAsked(late[1], (NODE,)))

    assert "aligned" in machine.state.assumptions
    assert [each.offered for each in done if isinstance(each, AnswerNodes)] == [()]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (events.PodGone(WIDE.uid), "the pod waits no longer"),
        (events.PodLeft(WIDE.uid), "the pod waits no longer"),
        (events.NodeChanged(NODE), "the node has changed"),
        (events.LeadershipEnded(), "this process does not lead any more"),
    ],
)
def test_a_node_is_given_back(event, reason):
    machine = Machine({NODE: full()})
    machine.wait(WIDE)
    machine.pass_time(PATIENCE)
    assert machine.handle(event) == [GiveNodeBack(NODE, "default/wide", WIDE.uid, reason)]
    assert len(machine.state.kept_nodes) == 0


def test_a_node_whose_state_is_unknown_is_given_back():
    machine = Machine({NODE: full()})
    machine.wait(WIDE)
    machine.pass_time(PATIENCE)
    machine.cluster.remove_host(NODE)
    assert machine.pass_time(1.0) == [GiveNodeBack(NODE, "default/wide", WIDE.uid, "the pod cannot go there any more")]


def test_a_pod_that_does_not_take_its_node_gets_none_for_a_while():
    machine = Machine({NODE: full()})
    machine.wait(WIDE)
    machine.pass_time(PATIENCE)
    make_room(machine)

    assert machine.pass_time(1.0) == []
    reason = "the pod was not placed although there was room"
    assert machine.pass_time(ROOM_SECONDS) == [GiveNodeBack(NODE, "default/wide", WIDE.uid, reason)]
    assert machine.pass_time(UNUSED_SECONDS - 1) == []
    assert kept_for(machine.pass_time(1.0)) == [(NODE, "default/wide")]


def test_no_node_is_kept_for_a_released_pod_whose_node_became_unschedulable():
    """It cannot go elsewhere, so nothing wakes it for another node."""
    machine = Machine({name: host() for name in "ab"}, gate=GateOptions(patience=PATIENCE, unbound=10 * PATIENCE))
    machine.state.wake_ups.adopts = True
    facts = machine.wait(pod("p", cpu="1"))
    machine.place_next()
    machine.handle(events.ReleaseWritten("p"))
    machine.see(facts, state=WaitState.UNSCHEDULABLE, released_to=machine.state.assumptions.nodes["p"])
    done = [each for _ in range(5) for each in (*machine.pass_time(PATIENCE), *machine.handle(events.WakeNext()))]
    assert not [each for each in done if isinstance(each, KeepNode | WakePod)]
    assert machine.gate.state_of("p") is GatedPodState.RELEASED


@pytest.mark.parametrize(("wish", "numa_nodes"), [("1", None), ("0", 1), ("pack", 1), ("spread", 1)])
def test_a_pod_is_not_steered_to_where_it_delays_the_one_that_its_node_is_kept_for(wish, numa_nodes):
    """That one fits on NUMA node 1 only, which has a CPU more."""
    machine = Machine({NODE: full(markers=8)})
    machine.wait(WIDE)
    machine.pass_time(PATIENCE)
    make_room(machine)
    small = marked(pod("small", cpu="2", memory="1Gi", annotations={NUMA_ANNOTATION: wish}))
    facts = machine.wait(small, 1, state=WaitState.OTHER)

    done = machine.handle(events.BindingAsked(1, facts, NODE))

    assert [each.nodes for each in done if isinstance(each, WriteSteering)] == ([numa_nodes] if numa_nodes else [])
    assert machine.state.kept_nodes.names == {NODE}


def test_a_release_is_not_given_up_while_its_pod_is_being_bound():
    """Else others would be promised what the pod gets; its scheduler asks this process, which also placed it."""
    machine = Machine({NODE: host()}, gate=GateOptions(unbound=10.0))
    facts = machine.wait(pod("p", cpu="1"))
    machine.place_next()
    machine.handle(events.ReleaseWritten("p"))
    released = machine.see(facts, state=WaitState.OTHER, released_to=(NODE,))
    machine.handle(events.BindingAsked(1, released, NODE))

    machine.pass_time(11.0)

    assert machine.gate.state_of("p") is GatedPodState.RELEASED
    assert "p" in machine.state.assumptions
    machine.handle(events.BindingFailed(1, "no"))
    machine.pass_time(1.0)
    assert machine.gate.state_of("p") is not GatedPodState.RELEASED
