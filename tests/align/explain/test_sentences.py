"""Sentences that explain a decision."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import Outcome, Placement, Rejection, ResourceHints
from alignup.align.explain import sentences
from alignup.align.hint import DONT_CARE, Hint
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.merging.merge import MergeRule
from alignup.align.quantity import Quantity
from alignup.align.release import find_release
from alignup.align.settings import FeatureGates, Policy, Scope, TopologyOptions, TopologySettings
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.names import POLICY_ANNOTATION
from alignup.documents.decisions import from_document, to_document
from alignup.picture.decision_text import decision_parts
from tests.align.hosts import GPU, RESERVATION, admit, arrivals, hosts, make_host, make_pod
from tests.strategies_pods import guaranteed


@pytest.mark.parametrize(
    ("resource", "number", "milli", "expected"),
    [
        pytest.param("cpu", 1, False, "1 CPU", id="one CPU"),
        pytest.param("cpu", 6, False, "6 CPUs", id="several CPUs"),
        pytest.param("cpu", 1500, True, "1500m CPU", id="parts of a CPU"),
        pytest.param("cpu", 2000, True, "2 CPUs", id="whole CPUs in milli-CPUs"),
        pytest.param("memory", 4 << 30, False, "4Gi memory", id="memory"),
        pytest.param("memory", (4 << 30) + 4096, False, "4194308Ki memory", id="memory that is not round"),
        pytest.param("memory", 17, False, "17 memory", id="memory in bytes"),
        pytest.param("memory", 0, False, "0 memory", id="no memory"),
        pytest.param("hugepages-2Mi", 64 << 20, False, "64Mi hugepages-2Mi", id="huge pages"),
        pytest.param("example.com/gpu", 2, False, "2 example.com/gpu", id="devices"),
    ],
)
def test_amounts_can_be_read_and_pasted(resource, number, milli, expected):
    assert sentences.format_amount(resource, number, milli=milli) == expected


@given(st.integers(0, 1 << 62))
def test_sizes_are_exact(number):
    assert Quantity.parse(sentences.format_quantity(number)).value() == number


def test_an_admission():
    decision = make_host().decide(make_pod("a", gpu="1"))

    assert sentences.verdict(decision) == "Pod default/a is admitted"
    assert sentences.describe_rules(decision) == "policy single-numa-node · scope container · Guaranteed pod"
    assert sentences.describe_choice(decision.steps[0]) == (
        "{0}* is preferred by every resource; so is {1}, but higher-numbered"
    )
    assert (
        sentences.describe_allocation(decision.placements[0])
        == "example.com/gpu gpu-0 · CPUs 1-2 · 1Gi memory on NUMA node 0"
    )
    assert sentences.describe_rejection(decision) == ()


def test_an_admitted_pod_keeps_its_allocation():
    host = make_host()
    host.admit(make_pod("a"))

    assert sentences.verdict(host.decide(make_pod("a"))) == "Pod default/a is already admitted and keeps its allocation"


def test_a_container_without_exclusive_cpus():
    decision = make_host(memory=False).decide(make_pod("a", cpu="500m"))

    assert sentences.describe_allocation(decision.placements[0]) == "shared CPU pool"
    assert sentences.describe_choice(decision.steps[0]) == "anywhere: no requested resource is tied to a NUMA node"


def test_resources_that_fit_nowhere_are_not_called_untied():
    decision = make_host(Policy.BEST_EFFORT, memory=False).decide(make_pod("a", cpu="100"))

    assert sentences.describe_choice(decision.steps[0]) == "anywhere: cpu fits on no set of NUMA nodes"


def test_containers_in_the_shared_pool_are_listed_together():
    def placed(name, **allocation):
        return Placement(name, Hint(None, preferred=True), cpus=bits.parse(allocation["cpu"]) if allocation else None)

    assert sentences.describe_allocations([placed("a")]) == "a: shared CPU pool"
    marked = Placement("a", Hint(None, preferred=True), devices={"alignup.dev/numa": ("numa-1-003",)})
    assert sentences.describe_allocations([marked]) == "a: marker numa-1-003"
    assert sentences.describe_allocations([placed("a"), placed("b", cpu="3")]) == "b: CPU 3; a: shared CPU pool"
    assert sentences.describe_allocations([placed("a"), placed("b", cpu="3"), placed("c")]) == (
        "b: CPU 3; a, c: shared CPU pool"
    )


def test_a_result_without_shared_containers():
    both = [Placement(name, Hint(None, preferred=True), cpus=cpus) for name, cpus in (("a", 0b1), ("b", 0b110))]

    assert sentences.describe_allocations(both) == "a: CPU 0; b: CPUs 1-2"


def test_under_policy_none_nothing_is_aligned():
    decision = make_host(Policy.NONE).decide(make_pod("a"))

    assert sentences.describe_rules(decision) == "policy none: nothing is aligned · Guaranteed pod"
    assert sentences.disagreeing_resources(decision) == ()


def test_requests_for_devices_that_no_plugin_provides_are_named():
    known, none = make_pod("a", gpu="1"), replace(make_pod("b"), containers=(guaranteed("app", {"x.y/fpga": "0"}),))
    missing = replace(make_pod("b"), containers=(guaranteed("app", {"x.y/nic": "1", "x.y/fpga": "1", "cpu": "1"}),))
    host = make_host()

    assert [host.missing_devices(each) for each in (known, none, missing)] == [(), (), ("x.y/fpga", "x.y/nic")]
    assert sentences.not_schedulable(missing, host.missing_devices(missing)) == (
        f"Pod {missing.namespace}/b is not schedulable: no device plugin provides x.y/fpga, x.y/nic"
    )


def test_requests_that_a_kubelet_ignores_are_named():
    plain = make_pod("a")
    pod_level = replace(plain, resources=plain.containers[0].resources)
    host, enabled = make_host(), make_host(gates=FeatureGates({"PodLevelResourceManagers": True}))
    level = (
        "{} pod-level resources (spec.resources): "
        "their CPUs and memory are not aligned without feature gate PodLevelResourceManagers"
    )

    assert sentences.ignored_requests(host, [plain]) == ()
    assert sentences.ignored_requests(host, [pod_level]) == (level.format("a has"),)
    assert sentences.ignored_requests(host, [pod_level, pod_level]) == (level.format("a and others have"),)
    assert sentences.ignored_requests(enabled, [pod_level]) == ()


_IGNORED = "they are ignored without feature gate PodLevelResources; the containers count by their own requests"


@pytest.mark.parametrize(
    ("version", "gates", "note"),
    [
        ("1.33", {}, _IGNORED),
        ("1.33", {"PodLevelResources": True}, "their CPUs and memory are not aligned by Kubernetes 1.33"),
        ("1.35", {}, "their CPUs and memory are not aligned by Kubernetes 1.35"),
        ("1.36", {}, "their CPUs and memory are not aligned without feature gate PodLevelResourceManagers"),
        ("1.37", {"PodLevelResources": False}, _IGNORED),
    ],
)
def test_a_note_on_pod_level_resources_names_only_gates_of_the_release(version, gates, note):
    plain, release = make_pod("a"), find_release(version)
    pod_level = replace(plain, resources=plain.containers[0].resources)
    host = make_host(release=release, gates=FeatureGates(gates, release))

    assert sentences.ignored_requests(host, [pod_level]) == (f"a has pod-level resources (spec.resources): {note}",)


def test_a_pod_waits_for_its_device_plugin():
    host = make_host(preferred_allocation=frozenset({GPU}))
    host.update_devices(GPU, [Device(GPU, f"gpu-{number}", nodes=1) for number in range(3)])

    assert sentences.verdict(host.decide(make_pod("a", gpu="2"))) == (
        f"Pod default/a is waiting for the preferred allocation of {GPU} from its device plugin"
    )


def busy(policy: Policy) -> Host:
    """Node 0 has one CPU and a GPU left, node 1 four CPUs and no GPU."""
    host = make_host(policy)
    for each in (make_pod("web", cpu="2", gpu="1"), make_pod("renderer", cpu="500m", gpu="1")):
        assert host.admit(each).admitted
    host.update_devices(
        GPU, [Device(GPU, "gpu-0", nodes=1), Device(GPU, "gpu-1", nodes=2), Device(GPU, "gpu-2", nodes=1)]
    )
    return host


REJECTIONS = {
    "no single node has everything": (
        lambda: busy(Policy.SINGLE_NUMA_NODE).decide(make_pod(cpu="3", gpu="1")),
        [
            "NUMA node 0: 2 CPUs short (3 requested, 1 free)",
            "NUMA node 1: 1 example.com/gpu short (1 requested, 0 free)",
        ],
    ),
    "a request larger than any node": (
        lambda: make_host().decide(make_pod(cpu="6")),
        ["6 CPUs: too large for any single NUMA node of this machine, even an empty one; it needs 2"],
    ),
    "two requests larger than any node": (
        lambda: make_host().decide(make_pod(gpu="2", memory="17Gi")),
        [
            "17Gi memory: too large for any single NUMA node of this machine, even an empty one; it needs 2",
            "2 example.com/gpu: too large for any single NUMA node of this machine, even an empty one; it needs 2",
        ],
    ),
    "a provider with too little in total": (
        lambda: make_host(Policy.BEST_EFFORT).decide(make_pod(gpu="3")),
        ["the node has too little for container app: 1 example.com/gpu short (3 requested, 2 free)"],
    ),
    "a host with too little in total": (
        lambda: make_host(Policy.NONE, memory=False).decide(make_pod(cpu="1500m", memory="40Gi")),
        ["the node has too little for the pod: 8256Mi memory short (40Gi requested, 32704Mi free)"],
    ),
    "a host that counts milli-CPUs": (
        lambda: make_host(Policy.NONE, memory=False).decide(make_pod(cpu="7500m", memory="4Gi")),
        ["the node has too little for the pod: 500m CPU short (7500m requested, 7 free)"],
    ),
}


@pytest.mark.parametrize(("decide", "expected"), REJECTIONS.values(), ids=REJECTIONS)
def test_a_rejection_states_what_did_not_fit_where_and_by_how_much(decide, expected):
    decision = decide()

    assert sentences.verdict(decision).startswith("Pod default/a is rejected: ")
    assert sorted(sentences.describe_rejection(decision)) == sorted(expected)


def test_restricted_also_lists_preferences():
    decision = busy(Policy.RESTRICTED).decide(make_pod(cpu="3", gpu="1"))

    assert sentences.disagreeing_resources(decision) == (GPU, "cpu")
    assert sentences.describe_rejection(decision) == (
        "NUMA node 0: 2 CPUs short (3 requested, 1 free)",
        "NUMA node 1: 1 example.com/gpu short (1 requested, 0 free)",
        "example.com/gpu and cpu prefer different NUMA nodes",
        "example.com/gpu prefers {0}",
        "cpu prefers {1}",
        "memory prefers {0} or {1}",
    )


def test_restricted_says_what_fits_only_on_more_nodes_than_on_an_empty_machine():
    host = make_host(Policy.RESTRICTED)
    host.admit(make_pod("b", cpu="2"))
    host.admit(make_pod("c", cpu="2"))

    assert sentences.describe_rejection(host.decide(make_pod("a", cpu="3"))) == (
        "NUMA node 0: 2 CPUs short (3 requested, 1 free)",
        "NUMA node 1: 1 CPU short (3 requested, 2 free)",
        "cpu fits on {0-1}, but would need fewer nodes on an empty machine",
        "memory prefers {0} or {1}",
    )


def two_shares(policy: Policy) -> Host:
    """Both nodes hold memory of a pod each, and have 7 GiB or less of 16 left."""
    host = make_host(policy)
    for each in ("left", "right"):
        assert host.admit(make_pod(each, cpu="2", memory="9Gi", gpu="1")).admitted
    return host


def test_memory_that_no_node_has_and_no_group_can_form():
    decision = two_shares(Policy.BEST_EFFORT).decide(make_pod(cpu="1", memory="10Gi"))

    assert decision.rejection is not None
    assert decision.rejection.provider == "memory"
    assert sentences.describe_rejection(decision) == (
        (
            "10Gi memory: no NUMA node has that much free (7Gi at most), and nodes form a group only while no "
            "container holds memory on them, or if they form it already"
        ),
    )
    assert sentences.describe_choice(decision.steps[0]).startswith("{0}* is preferred by every resource with hints")


def test_a_node_of_a_group_has_memory_but_not_for_a_container_on_it_alone():
    """A pod holds memory on both nodes, so only containers on both may use what is left there."""
    host = make_host(pod_policy_annotations=True)
    assert host.admit(make_pod("wide", {POLICY_ANNOTATION: "best-effort"}, memory="20Gi")).admitted

    assert sentences.describe_rejection(host.decide(make_pod(cpu="1"))) == (
        "NUMA node 0: 1Gi memory short (1Gi requested, 0 free)",
        "NUMA node 1: memory has enough free, but not for a container on this node alone",
    )


def test_missing_memory_is_reported_together_with_missing_cpus():
    expected = sentences.describe_rejection(make_host().decide(make_pod(cpu="9", memory="40Gi")))

    assert expected == (
        "NUMA node 0: 6 CPUs short (9 requested, 3 free)",
        "NUMA node 1: 5 CPUs short (9 requested, 4 free)",
        "40Gi memory: all NUMA nodes together have 32704Mi free, 8256Mi short",
    )


def test_types_of_memory_that_are_not_on_the_same_nodes():
    host = make_host(shape="pack:2 numa:1 core:4 pu:1")
    resources = (
        ResourceHints("memory", "memory", 4 << 30, {0: 8 << 30, 1: 1 << 30}, DONT_CARE),
        ResourceHints("memory", "hugepages-2Mi", 2 << 20, {0: 0, 1: 4 << 20}, DONT_CARE),
    )
    decision = host.decide(make_pod())
    step = decision.steps[0]._replace(resources=resources)
    rejection = Rejection("UnexpectedAdmissionError", "Allocate failed", container="app", provider="memory")
    rejected = replace(decision, outcome=Outcome.REJECTED, rejection=rejection, steps=(step,))

    assert sentences.describe_rejection(rejected) == (
        "4Gi memory and 2Mi hugepages-2Mi: not free on the same NUMA nodes",
    )


def test_cores_that_are_not_whole():
    cpus = CpuSettings(policy="static", reservation=RESERVATION["cpu"], options={"full-pcpus-only": "true"})
    host = make_host(Policy.BEST_EFFORT, shape="pack:2 numa:1 core:2 pu:2", cpus=cpus)

    assert sentences.describe_rejection(host.decide(make_pod(cpu="1"))) == (
        "the CPUs of container app do not make up whole free cores, which full-pcpus-only requires",
    )


def test_a_machine_with_one_node_is_not_anywhere():
    (step,) = make_host(shape="pack:1 numa:1 core:4 pu:1").decide(make_pod()).steps

    assert sentences.describe_choice(step) == "the only NUMA node is preferred by every resource"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(
            MergeRule.AT_TARGET, "the best set of 2 nodes, which is what the widest request needs", id="as wide"
        ),
        pytest.param(MergeRule.NARROWER, "is possible, so one of fewer", id="narrower"),
        pytest.param(MergeRule.WIDER, "is possible, so one of more", id="wider"),
        pytest.param(MergeRule.EQUALLY_FIT, "chose it among equally fit sets", id="a strategy"),
    ],
)
def test_a_second_best_choice_gives_its_reason(rule, expected):
    step = make_host().decide(make_pod()).steps[0]._replace(rule=rule, hint=Hint(3, preferred=False), width=2)

    sentence = sentences.describe_choice(step)

    assert sentence.startswith("{0-1}, not preferred by every resource: ")
    assert sentence.endswith(expected)


def test_an_impossible_resource_hides_the_preferences_of_others():
    expected = sentences.describe_rejection(make_host(Policy.RESTRICTED).decide(make_pod(cpu="1", gpu="3")))

    assert expected[-1] == "example.com/gpu fits on no set of NUMA nodes"
    assert not any("prefers" in sentence for sentence in expected)


def test_hidden_hints_still_count_as_possible():
    wide = make_host(
        shape="pack:2 numa:18 core:2 pu:2",
        topology=TopologySettings(policy=Policy.RESTRICTED, options=TopologyOptions(max_nodes=64)),
        memory=False,
    )

    decision = wide.decide(make_pod(cpu="20", gpu="1"))

    assert sentences.describe_rejection(decision) == (
        f"{GPU} prefers {{0}}, {{1}}, {{2}}, {{3}}, {{4}}, {{5}}, {{6}}, {{7}}, …",
        "cpu needs several NUMA nodes",
    )


def test_memory_reused_by_later_containers_is_not_listed():
    taking = Pod(
        name="a",
        uid="a",
        init=(guaranteed("init", {"cpu": "1", "memory": "1Gi"}),),
        containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}),),
    )

    first, second = make_host().decide(taking).placements

    assert sentences.describe_allocation(first) == "CPU 1"
    assert sentences.describe_allocation(second) == "CPU 1 · 1Gi memory on NUMA node 0"


def test_burstable_pods_get_nothing_exclusive():
    limits, requests = ({"cpu": Quantity.parse(cpu)} for cpu in ("2", "1"))
    burstable = Pod(name="a", uid="a", containers=(Container("app", Resources(requests, limits)),))

    assert sentences.describe_rules(make_host().decide(burstable)).endswith(
        " · Burstable pod: no exclusive CPUs, no pinned memory"
    )


@settings(deadline=None)
@given(st.data(), hosts())
def test_a_decoded_decision_gives_the_same_sentences(data, host):
    decisions = []
    for number in range(3):
        arriving = data.draw(arrivals(f"uid-{number}"))
        decisions.append(admit(host, arriving))

    for decision in decisions:
        read = from_document(to_document(decision))
        assert sentences.verdict(read) == sentences.verdict(decision)
        assert sentences.describe_rejection(read) == sentences.describe_rejection(decision)
        assert bool(sentences.describe_rejection(decision)) == bool(decision.rejection)
        assert [sentences.describe_allocation(placed) for placed in read.placements] == [
            sentences.describe_allocation(placed) for placed in decision.placements
        ]
        for step in decision.steps:
            assert sentences.describe_choice(step)


def test_parts_without_a_merge_still_list_the_requests():
    host = make_host(Policy.NONE)
    wanted = make_pod("a", gpu="1")

    (part,) = decision_parts(host, wanted, host.decide(wanted))

    assert (part.container, part.step) == ("app", None)
    assert {resource.resource: resource.request for resource in part.resources} == {GPU: 1, "cpu": 2, "memory": 1 << 30}
    assert [placed.container for placed in part.placements] == ["app"]


def test_a_pod_as_a_whole_is_one_part():
    host = make_host(scope=Scope.POD)
    wanted = make_pod("a", gpu="1")

    (part,) = decision_parts(host, wanted, host.decide(wanted))

    assert part.container is None
    assert [placed.container for placed in part.placements] == ["app"]
