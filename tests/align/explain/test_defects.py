"""A defect of the kubelet that changes a decision is named, with its issue."""

from dataclasses import replace

from alignup.align import bits
from alignup.align.cpus.options import CpuSettings
from alignup.align.explain.defects import DEFECTS, OTHER_DEFECTS
from alignup.align.explain.sentences import describe_defects
from alignup.align.host import Host, Settings
from alignup.align.machine import Device
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.release import find_release
from alignup.align.settings import Policy, TopologySettings
from alignup.align.workload import Pod
from alignup.documents.machines import machine_from_document
from alignup.machines.synthetic import parse
from tests.align.hosts import GPU, pod
from tests.console_runner import ROOT
from tests.strategies_pods import guaranteed

#: Two large cores with two CPUs each, and four small ones: 8 // 6 = 1 CPU on average.
HYBRID = machine_from_document(
    {
        "alignup": "machine/v1",
        "cpus": [{"socket": 0, "node": 0, "cores": "0,1 2,3 4 5 6 7"}],
        "nodes": [{"id": 0, "memory": "8Gi"}],
    },
    name="hybrid",
)
STATIC = Settings(cpus=CpuSettings(policy="static", reservation=Quantity.parse("1"), explicit=1), kubelet_faults=True)


def test_cpus_that_are_not_free_are_named():
    host, asked = Host(HYBRID, STATIC), pod("asked", cpu="2")
    decision = host.decide(asked)

    (sentence,) = describe_defects(decision, host.without_faults().decide(asked))

    assert bits.show(decision.placements[0].cpus) == "0-1"
    assert "CPUs 0 are not free" in sentence
    assert sentence.endswith("issues/140498)")


def test_the_safe_decision_has_no_defect():
    host, asked = Host(HYBRID, replace(STATIC, kubelet_faults=False)), pod("asked", cpu="2")
    decision = host.decide(asked)

    assert bits.show(decision.placements[0].cpus) == "4-5"
    assert not list(describe_defects(decision, host.without_faults().decide(asked)))


def test_a_decision_that_no_defect_changes_has_none():
    host, asked = Host(HYBRID, STATIC), pod("asked", cpu="1")
    decision = host.decide(asked)

    assert not list(describe_defects(decision, host.without_faults().decide(asked)))


def test_other_nodes_than_the_chosen_ones_are_named():
    cpus = replace(STATIC.cpus, options={"distribute-cpus-across-numa": "true"}, explicit=0)
    host = Host(parse("pack:8 numa:1(memory=8GiB) core:4 pu:1"), replace(STATIC, cpus=cpus))
    host.admit(pod("first", cpu="1"))
    asked = pod("asked", cpu="13")

    (sentence,) = describe_defects(host.decide(asked), host.without_faults().decide(asked))

    assert "other NUMA nodes than it chose" in sentence
    assert sentence.endswith("issues/141238)")


def test_an_endless_loop_is_named():
    cpus = replace(
        STATIC.cpus,
        options={"distribute-cpus-across-numa": "true", "full-pcpus-only": "true"},
        reservation=Quantity.parse("8"),
        explicit=bits.of(range(0, 64, 8)),
    )
    host = Host(parse("pack:2 numa:4(memory=8GiB) core:4 pu:2"), replace(STATIC, cpus=cpus))
    asked = pod("asked", cpu="22")
    decision = host.decide(asked)

    (sentence,) = describe_defects(decision, host.without_faults().decide(asked))

    assert decision.rejection is not None
    assert decision.rejection.reason == "KubeletHangs"
    assert sentence.endswith("issues/140730)")
    fixed = Host(host.machine, replace(host.settings, release=find_release("1.38")))
    assert fixed.decide(asked).admitted


def test_a_node_that_leaves_its_memory_group_is_named():
    """The large container makes a group of both NUMA nodes; the GPU of the small one is on one of them."""
    machine = parse("pack:2 numa:1(memory=8GiB) core:4 pu:1")
    reserved = Quantity.parse("1Gi")
    settings = replace(
        STATIC,
        topology=TopologySettings(policy=Policy.BEST_EFFORT),
        memory_policy="Static",
        reserved_memory=(ReservedMemory(0, {"memory": reserved}),),
        reservation={"memory": reserved},
    )
    host = Host(replace(machine, devices=(Device(GPU, "gpu-1", nodes=0b10),)), settings)
    large = guaranteed("large", {"cpu": "1", "memory": "10Gi"})
    small = guaranteed("small", {"cpu": "1", "memory": "1Gi", GPU: "1"})
    asked = Pod(name="asked", uid="asked", containers=(large, small))

    (sentence,) = describe_defects(host.decide(asked), host.without_faults().decide(asked))

    assert sentence.endswith("issues/113035)")


def test_the_page_of_defects_has_all_of_them():
    rows = [
        f"| [{defect.title}](#{defect.title.lower().replace(' ', '-')}) | {defect.releases} | {defect.upstream} |"
        for defect in DEFECTS
    ]
    page = (ROOT / "docs" / "kubelet-defects.md").read_text("utf-8")

    listed = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| defect |")]
    assert listed[: len(rows)] == rows
    for defect, row in zip(OTHER_DEFECTS, listed[len(rows) :], strict=True):
        assert row.startswith(f"| {defect.title}: ")
        assert row.endswith(f" | {defect.releases} | {defect.upstream} |")
    assert all(f"\n## {defect.title}\n" in page for defect in DEFECTS)


def test_the_release_with_the_fix_is_named():
    host, asked = Host(HYBRID, STATIC), pod("asked", cpu="2")

    (sentence,) = describe_defects(host.decide(asked), host.without_faults().decide(asked))

    assert sentence.startswith("a defect of the kubelet, fixed in 1.38: ")
    assert {defect.title: defect.fix for defect in DEFECTS} == {
        "CPUs that are not free": "fixed in 1.38",
        "CPUs on other NUMA nodes than chosen": "fixed in 1.38",
        "An endless loop": "fixed in 1.38",
        "Memory of a part of a group": "not fixed",
        "Hints for devices of a claim": "not fixed",
        "Admitted pods that are rejected": "not fixed",
    }
