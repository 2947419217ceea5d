"""A decision for the terminal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.explain.parts import parts
from alignup.align.machine import Device
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Pod
from alignup.picture.cells import plain
from alignup.picture.decision import draw
from alignup.picture.words import columns
from tests.align.hosts import GPU, admit, arrivals, host, hosts, pod
from tests.strategies_pods import guaranteed


def drawn(one, wanted, **options):
    decision = one.decide(wanted)
    return [plain(line) for line in draw(one.machine, decision, parts(one, wanted, decision), **options)]


def test_each_resource_shows_what_every_node_has_and_who_has_the_rest():
    one = host()
    one.admit(pod("web", cpu="2", gpu="1"))

    lines = drawn(one, pod("late", cpu="2", gpu="1"))

    assert lines == [
        "",
        "Container app",
        "┌─ example.com/gpu · 1 asked for ──────────────────────────────────────────────┐",
        "│ node 0     ████████████████  0 free · 1 short · 1 default/web                │",
        "│ node 1     ░░░░░░░░░░░░░░░░  1 free                                          │",
        "│ hints      {1}* {0-1}                                                        │",
        "└──────────────────────────────────────────────────────────────────────────────┘",
        "┌─ cpu · 2 asked for ──────────────────────────────────────────────────────────┐",
        "│ node 0     ▓▓▓▓████████░░░░  1 free · 1 short · 1 reserved · 2 default/web   │",
        "│ node 1     ░░░░░░░░░░░░░░░░  4 free                                          │",
        "│ hints      {1}* {0-1}                                                        │",
        "└──────────────────────────────────────────────────────────────────────────────┘",
        "┌─ memory · 1 GiB asked for ───────────────────────────────────────────────────┐",
        "│ node 0     █░░░░░░░░░░░░░░░  14.9 GiB free · 64 MiB reserved                 │",
        "│            · 1 GiB default/web                                               │",
        "│ node 1     ░░░░░░░░░░░░░░░░  16 GiB free                                     │",
        "│ hints      {0}* {1}*                                                         │",
        "└──────────────────────────────────────────────────────────────────────────────┘",
        "chosen       {1}* is preferred by every resource",
        "given        example.com/gpu gpu-1 · CPUs 4-5 · 1Gi memory on node 1",
    ]


def test_a_refusal_says_that_nothing_was_chosen():
    lines = drawn(host(), pod("late", cpu="6"))

    assert "chosen       nothing: no set of nodes suits every resource" in lines
    assert not any(line.startswith("given") for line in lines)


def test_what_the_policy_did_not_take_is_named():
    one = host(Policy.RESTRICTED)
    one.admit(pod("web", cpu="2", gpu="1"))
    one.admit(pod("db", cpu="3"))

    lines = drawn(one, pod("late", cpu="2"))

    assert any(line.startswith("chosen       nothing: policy restricted does not take {") for line in lines)


def test_earlier_containers_of_the_pod_count_as_this_pod():
    two = Pod(
        name="two",
        uid="two",
        containers=tuple(guaranteed(name, {"cpu": "2", "memory": "1Gi"}) for name in ("first", "second")),
    )

    lines = drawn(host(memory=False), two)

    assert "Container second" in lines
    assert any("2 this pod" in line for line in lines[lines.index("Container second") :])


def test_the_pod_as_a_whole_names_what_each_container_was_given():
    lines = drawn(host(scope=Scope.POD), pod("a"))

    assert "The pod as a whole" in lines
    assert any(line.startswith("given app") for line in lines)


def test_nodes_that_tell_the_same_share_a_line():
    lines = drawn(host(shape="pack:2 numa:4 core:4 pu:1", memory=False), pod("a"))

    assert any("nodes 1-7" in line and "4 free" in line for line in lines)


def test_devices_without_a_node_have_a_line_of_their_own():
    one = host()
    one.announce(GPU, [Device(GPU, "gpu-0", nodes=None)])

    lines = drawn(one, pod("a", gpu="1"))

    assert "│ no node    ░░░░░░░░░░░░░░░░  1 free                                          │" in lines
    assert "│ hints      anywhere                                                          │" in lines


def test_what_is_nowhere_enough_has_no_say():
    one = host()
    one.announce(GPU, [])

    lines = drawn(one, pod("a", gpu="1"))

    assert "│ nodes 0-1                    0 free · 1 short                                │" in lines
    assert "│ hints      there is not enough, so it has no say                             │" in lines


def test_an_ill_device_is_not_free():
    one = host()
    one.announce(GPU, [Device(GPU, "gpu-0", nodes=1, healthy=False), Device(GPU, "gpu-1", nodes=2)])

    lines = drawn(one, pod("a", gpu="1"))

    assert any("0 free · 1 short · 1 unhealthy or lost" in line for line in lines)


def test_a_pod_that_asks_for_nothing():
    assert "asks for     nothing that is given out" in drawn(
        host(Policy.NONE, memory=False), Pod(name="a", uid="a", containers=(guaranteed("app", {}),))
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@settings(deadline=None, max_examples=30)
@given(st.data(), hosts())
def test_every_decision_can_be_drawn_within_the_width(width, data, one):
    for number in range(3):
        arriving = data.draw(arrivals(f"uid-{number}"))
        decision = one.decide(arriving)
        lines = draw(one.machine, decision, parts(one, arriving, decision), width=width, ascii_only=True)
        for line in map(plain, lines):
            assert columns(line) <= max(width, 60)
            assert line.isascii()
        admit(one, arriving)
