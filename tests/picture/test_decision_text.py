"""Pictures of decisions for the terminal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.machine import Device
from alignup.align.settings import Policy, Scope, TopologyOptions, TopologySettings
from alignup.align.workload import Pod
from alignup.picture.decision_text import draw_decision
from alignup.picture.text_format import display_width, plain, to_ascii
from tests.align.hosts import GPU, admit, arrivals, hosts, make_host, make_pod
from tests.effort import examples
from tests.strategies_pods import guaranteed


def drawn(host, wanted, **options):
    decision = host.decide(wanted)
    return [plain(line) for line in draw_decision(host, wanted, decision, **options)]


def test_each_resource_shows_every_node_and_the_holders():
    host = make_host()
    host.admit(make_pod("web", cpu="2", gpu="1"))

    lines = drawn(host, make_pod("late", cpu="2", gpu="1"))

    assert lines == [
        "",
        "Container app",
        "┌─ example.com/gpu · 1 requested ──────────────────────────────────────────────┐",
        "│ node 0     ████████████████  0 free · 1 short · 1 default/web                │",
        "│ node 1     ░░░░░░░░░░░░░░░░  1 free                                          │",
        "│ hints      {1}* {0-1}                                                        │",
        "└──────────────────────────────────────────────────────────────────────────────┘",
        "┌─ cpu · 2 requested ──────────────────────────────────────────────────────────┐",
        "│ node 0     ▓▓▓▓████████░░░░  1 free · 1 short · 1 reserved · 2 default/web   │",
        "│ node 1     ░░░░░░░░░░░░░░░░  4 free                                          │",
        "│ hints      {1}* {0-1}                                                        │",
        "└──────────────────────────────────────────────────────────────────────────────┘",
        "┌─ memory · 1 GiB requested ───────────────────────────────────────────────────┐",
        "│ node 0     █░░░░░░░░░░░░░░░  14.9 GiB free · 64 MiB reserved                 │",
        "│            · 1 GiB default/web                                               │",
        "│ node 1     ░░░░░░░░░░░░░░░░  16 GiB free                                     │",
        "│ hints      {0}* {1}*                                                         │",
        "└──────────────────────────────────────────────────────────────────────────────┘",
        "chosen       {1}* is preferred by every resource",
        "allocated    example.com/gpu gpu-1 · CPUs 4-5 · 1Gi memory on NUMA node 1",
        "*            preferred: no smaller set fits, even on an empty machine",
    ]


def test_a_rejection_chooses_nothing():
    lines = drawn(make_host(), make_pod("late", cpu="6"))

    assert "chosen       nothing: no set of NUMA nodes suits every resource" in lines
    assert not any(line.startswith("allocated") for line in lines)


def test_the_hint_that_the_policy_rejects_is_shown():
    host = make_host(Policy.RESTRICTED)
    host.admit(make_pod("web", cpu="2", gpu="1"))
    host.admit(make_pod("db", cpu="3"))

    lines = drawn(host, make_pod("late", cpu="2"))

    assert any(line.startswith("chosen       nothing: policy restricted rejects {") for line in lines)


def test_earlier_containers_of_the_pod_count_as_this_pod():
    two = Pod(
        name="two",
        uid="two",
        containers=tuple(guaranteed(name, {"cpu": "2", "memory": "1Gi"}) for name in ("first", "second")),
    )

    lines = drawn(make_host(memory=False), two)

    assert "Container second" in lines
    assert any("2 this pod" in line for line in lines[lines.index("Container second") :])


def test_a_whole_pod_lists_the_allocation_of_each_container():
    lines = drawn(make_host(scope=Scope.POD), make_pod("a"))

    assert "Whole pod" in lines
    assert any(line.startswith("app  ") for line in lines)


def test_equal_nodes_share_a_line():
    lines = drawn(make_host(shape="pack:2 numa:4 core:4 pu:1", memory=False), make_pod("a"))

    assert any("nodes 1-7" in line and "4 free" in line for line in lines)


def test_devices_without_a_node_have_a_line():
    host = make_host()
    host.update_devices(GPU, [Device(GPU, "gpu-0", nodes=None)])

    lines = drawn(host, make_pod("a", gpu="1"))

    assert "│ no node    ░░░░░░░░░░░░░░░░  1 free                                          │" in lines
    assert "│ hints      anywhere                                                          │" in lines


def test_a_resource_without_enough_devices_gives_no_hints():
    host = make_host()
    host.update_devices(GPU, [])

    lines = drawn(host, make_pod("a", gpu="1"))

    assert "│ nodes 0-1                    0 free · 1 short                                │" in lines
    assert "│ hints      not enough, so it gives no hints                                  │" in lines


def test_memory_that_fits_nowhere_gives_no_hints():
    host = make_host(memory=True)
    for name in ("a", "b"):
        assert host.admit(make_pod(name, cpu="1", memory="9Gi")).admitted

    lines = drawn(host, make_pod("late", cpu="1", memory="10Gi"))

    text = " ".join(" ".join(lines).replace("│", "").split())
    assert "none: no set of nodes has enough, so memory gives no hints" in text
    assert "is preferred by every resource with hints" in text


def test_hints_beyond_the_search_limit_are_mentioned():
    options = TopologyOptions(max_nodes=64)
    wide = make_host(
        shape="pack:2 numa:18 core:2 pu:2",
        memory=False,
        topology=TopologySettings(policy=Policy.BEST_EFFORT, options=options),
    )

    lines = drawn(wide, make_pod("late", cpu="20"))

    assert any("sets of several nodes, too many to list" in line for line in lines)
    assert not any("fits on no set of nodes" in line for line in lines)


def test_strips_are_aligned():
    host = make_host(shape="pack:2 numa:4 core:4 pu:1", memory=False)
    for name in ("a", "b", "c"):
        host.admit(make_pod(name, cpu="3"))
    host.release("b")

    lines = drawn(host, make_pod("late", cpu="2"))

    strips = [line.index(next(sign for sign in line if sign in "█▓░")) for line in lines if " free" in line]
    assert any("nodes 1,3-7" in line for line in lines)
    assert len(strips) > 1
    assert len(set(strips)) == 1


def test_memory_reused_from_an_init_container_is_not_short():
    reusing = Pod(
        name="a",
        uid="a",
        init=(guaranteed("init", {"cpu": "3", "memory": "1Gi"}),),
        containers=(guaranteed("app", {"cpu": "3", "memory": "1Gi"}),),
    )

    lines = drawn(make_host(memory=False), reusing)

    line = next(line for line in lines[lines.index("Container app") :] if "3 this pod" in line)
    assert "0 free · 1 reserved" in line


def test_one_more_holder_than_the_limit_is_listed():
    host = make_host(memory=False, shape="pack:1 numa:1 core:8 pu:1")
    names = ["p1", "p2", "p3", "p4", "p5", "p6"]
    for name in names[:5]:
        assert host.admit(make_pod(name, cpu="1")).admitted
    five = " ".join(drawn(host, make_pod("late", cpu="1")))
    assert host.admit(make_pod("p6", cpu="1")).admitted
    six = " ".join(drawn(host, make_pod("late", cpu="1")))

    assert all(f"1 default/{name}" in five for name in names[:5])
    assert "2 in 2 other pods" in six


def test_an_unhealthy_device_is_not_free():
    host = make_host()
    host.update_devices(GPU, [Device(GPU, "gpu-0", nodes=1, healthy=False), Device(GPU, "gpu-1", nodes=2)])

    lines = drawn(host, make_pod("a", gpu="1"))

    assert any("0 free · 1 short · 1 unhealthy or lost" in line for line in lines)


def test_a_pod_without_requests():
    assert "requests     nothing exclusive" in drawn(
        make_host(Policy.NONE, memory=False), Pod(name="a", uid="a", containers=(guaranteed("app", {}),))
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@settings(deadline=None, max_examples=examples(30))
@given(st.data(), hosts())
def test_every_decision_can_be_drawn_within_the_width(width, data, host):
    for number in range(3):
        arriving = data.draw(arrivals(f"uid-{number}"))
        decision = host.decide(arriving)
        for line in draw_decision(host, arriving, decision, width=width):
            assert display_width(plain(line)) <= max(width, 60)
            assert plain(to_ascii(line)).isascii()
        admit(host, arriving)
