"""A decision in sentences."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.explain import story
from alignup.align.explain.parts import parts
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.record import from_document, to_document
from alignup.align.settings import Policy, Scope
from tests.align.hosts import GPU, admit, arrivals, host, hosts, pod


@pytest.mark.parametrize(
    ("resource", "number", "milli", "told"),
    [
        pytest.param("cpu", 1, False, "1 CPU", id="one CPU"),
        pytest.param("cpu", 6, False, "6 CPUs", id="several CPUs"),
        pytest.param("cpu", 1500, True, "1500m CPU", id="parts of a CPU"),
        pytest.param("cpu", 2000, True, "2 CPUs", id="whole CPUs counted in thousandths"),
        pytest.param("memory", 4 << 30, False, "4Gi memory", id="memory"),
        pytest.param("memory", (4 << 30) + 4096, False, "4194308Ki memory", id="memory that is no round number"),
        pytest.param("memory", 17, False, "17 memory", id="memory in bytes"),
        pytest.param("memory", 0, False, "0 memory", id="no memory"),
        pytest.param("hugepages-2Mi", 64 << 20, False, "64Mi hugepages-2Mi", id="huge pages"),
        pytest.param("example.com/gpu", 2, False, "2 example.com/gpu", id="devices"),
    ],
)
def test_amounts_can_be_read_and_pasted(resource, number, milli, told):
    assert story.amount(resource, number, milli=milli) == told


@given(st.integers(0, 1 << 62))
def test_sizes_are_exact(number):
    assert Quantity.parse(story.size(number)).value() == number


def test_an_admission():
    decision = host().decide(pod("a", gpu="1"))

    assert story.verdict(decision) == "Pod default/a is admitted"
    assert story.rules(decision) == "policy single-numa-node · scope container · Guaranteed pod"
    assert story.choice(decision.steps[0]) == (
        "{0}* is preferred by every resource; so is {1}, which is less close or higher in number"
    )
    assert story.given(decision.placements[0]) == "example.com/gpu gpu-0 · CPUs 1-2 · 1Gi memory on node 0"
    assert story.misfits(decision) == ()


def test_a_pod_that_is_there_already():
    one = host()
    one.admit(pod("a"))

    assert story.verdict(one.decide(pod("a"))) == "Pod default/a is there already and keeps what it has"


def test_a_container_without_cpus_of_its_own():
    decision = host(memory=False).decide(pod("a", cpu="500m"))

    assert story.given(decision.placements[0]) == "nothing of its own: it runs on the shared CPUs"
    assert story.choice(decision.steps[0]) == "nothing asked for belongs to NUMA nodes: anywhere will do"


def test_a_plugin_that_is_to_be_asked():
    one = host(preferred_allocation=frozenset({GPU}))
    one.announce(GPU, [Device(GPU, f"gpu-{number}", nodes=1) for number in range(3)])

    assert story.verdict(one.decide(pod("a", gpu="2"))) == (
        f"Pod default/a waits: the device plugin of {GPU} is to be asked first"
    )


def busy(policy: Policy) -> Host:
    """Node 0 has one CPU and a GPU left, node 1 four CPUs and no GPU."""
    one = host(policy)
    for each in (pod("web", cpu="2", gpu="1"), pod("renderer", cpu="500m", gpu="1")):
        assert one.admit(each).admitted
    one.announce(GPU, [Device(GPU, "gpu-0", nodes=1), Device(GPU, "gpu-1", nodes=2), Device(GPU, "gpu-2", nodes=1)])
    return one


REFUSALS = {
    "no single node has everything": (
        lambda: busy(Policy.SINGLE_NUMA_NODE).decide(pod(cpu="3", gpu="1")),
        ["node 0: 2 CPUs short (3 asked, 1 free)", "node 1: 1 example.com/gpu short (1 asked, 0 free)"],
    ),
    "something no node could ever hold": (
        lambda: host().decide(pod(cpu="6")),
        ["6 CPUs: no node of this machine is large enough, even an empty one; it takes 2 of them"],
    ),
    "nodes that lack the same share a sentence": (
        lambda: host().decide(pod(gpu="2", memory="17Gi")),
        [
            "17Gi memory: no node of this machine is large enough, even an empty one; it takes 2 of them",
            "2 example.com/gpu: no node of this machine is large enough, even an empty one; it takes 2 of them",
        ],
    ),
    "a provider that has too little in all": (
        lambda: host(Policy.BEST_EFFORT).decide(pod(gpu="3")),
        ["the host has too little for container app: 1 example.com/gpu short (3 asked, 2 free)"],
    ),
    "a host that has too little in all": (
        lambda: host(Policy.NONE, memory=False).decide(pod(cpu="1500m", memory="40Gi")),
        ["the host has too little for the pod: 8256Mi memory short (40Gi asked, 32704Mi free)"],
    ),
    "a host that counts CPUs in thousandths": (
        lambda: host(Policy.NONE, memory=False).decide(pod(cpu="7500m", memory="4Gi")),
        ["the host has too little for the pod: 500m CPU short (7500m asked, 7 free)"],
    ),
}


@pytest.mark.parametrize(("decide", "told"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_says_what_did_not_fit_where_and_by_how_much(decide, told):
    decision = decide()

    assert story.verdict(decision).startswith("Pod default/a is refused: ")
    assert sorted(story.misfits(decision)) == sorted(told)


def test_restricted_also_says_who_prefers_what():
    told = story.misfits(busy(Policy.RESTRICTED).decide(pod(cpu="3", gpu="1")))

    assert told == (
        "node 0: 2 CPUs short (3 asked, 1 free)",
        "node 1: 1 example.com/gpu short (1 asked, 0 free)",
        "example.com/gpu prefers {0}",
        "cpu prefers {1}",
        "memory prefers {0} or {1}",
    )


@settings(deadline=None)
@given(st.data(), hosts())
def test_every_decision_can_be_told_from_its_record_alone(data, one):
    decisions = []
    for number in range(3):
        arriving = data.draw(arrivals(f"uid-{number}"))
        decisions.append(admit(one, arriving))

    for decision in decisions:
        read = from_document(to_document(decision))
        assert story.verdict(read) == story.verdict(decision)
        assert story.misfits(read) == story.misfits(decision)
        assert bool(story.misfits(decision)) == bool(decision.refusal)
        assert [story.given(placed) for placed in read.placements] == [
            story.given(placed) for placed in decision.placements
        ]
        for step in decision.steps:
            assert story.choice(step)


def test_parts_of_a_pod_that_nobody_asks_about_still_show_what_it_asks_for():
    one = host(Policy.NONE)
    wanted = pod("a", gpu="1")

    (part,) = parts(one, wanted, one.decide(wanted))

    assert (part.container, part.step) == ("app", None)
    assert {voice.resource: voice.request for voice in part.voices} == {GPU: 1, "cpu": 2, "memory": 1 << 30}
    assert [placed.container for placed in part.placements] == ["app"]


def test_a_pod_as_a_whole_is_one_part():
    one = host(scope=Scope.POD)
    wanted = pod("a", gpu="1")

    (part,) = parts(one, wanted, one.decide(wanted))

    assert part.container is None
    assert [placed.container for placed in part.placements] == ["app"]
