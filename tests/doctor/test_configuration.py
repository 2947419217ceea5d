"""A configuration on a machine: every reason a kubelet has not to start, at once and in its words, with what to do."""

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.distances import Distances
from alignup.align.machine import CadvisorReport as Told
from alignup.align.machine import HugePages, Machine, NumaNode
from alignup.doctor import Area, DoctorReport, Severity, check_configuration
from alignup.kube import configuration
from tests.conformance.test_configuration import machine_of
from tests.doctor.clinic import GIB, MEMORY, STATIC, cases, examined, machine, of, text
from tests.strategies import machines

STAGES = [str(stage) for stage in configuration.StartupStage]


def stages(findings):
    return [one.what.split(" at ")[1].partition(":")[0] for one in of(Severity.ERROR, findings)]


def test_a_kubelet_that_stops_is_said_to_and_no_other(request):
    """The stage and the sentence are the kubelet's own, and what else is said is what another manager says."""
    for case in cases(request, "configuration.jsonl.gz"):
        on, storage = machine_of(case["machine"]), case["machine"]["ephemeral_storage"]
        found = check_configuration(case["text"].encode(), on, name="CONFIG", ephemeral_storage=storage).findings
        said = stages(found)
        if case["stage"] == "ok":
            assert not said, case
            continue
        assert case["stage"] in said, case
        assert min(map(STAGES.index, said)) == STAGES.index(case["stage"]), case
        for manager, texts in (case.get("managers") or {}).items():
            ours = {one.said for one in of(Severity.ERROR, found) if manager in one.what}
            assert ours & {*texts} if texts else not ours, case


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_is_answered(data):
    assert of(Severity.ERROR, check_configuration(data, machine(), name="x").findings)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        pytest.param(
            {"featureGates": {"CPUManager": True}, **STATIC, "cpuManagerPolicyOptions": {"align-by-socket": "true"}},
            ["defaulting_panic", "cpu_manager"],
            id="gates and options",
        ),
        pytest.param(
            {"topologyManagerPolicy": "strict", "memoryManagerPolicy": "static"},
            ["validation", "memory_manager"],
            id="two policies that are not",
        ),
        pytest.param(
            {"maxPods": "many", "kubeReserved": {"gpu": "1"}, "systemReserved": {"cpu": "x"}, "cpuManagerPolicy": "y"},
            ["load", "kube_reserved", "system_reserved", "cpu_manager"],
            id="a value of the wrong kind and reservations",
        ),
        pytest.param(
            {**STATIC, "cpuManagerPolicyOptions": {"a": "true", "full-pcpus-only": "yes", "align-by-socket": "1"}},
            ["cpu_manager"] * 3,
            id="every option",
        ),
        pytest.param(
            {**MEMORY, "reservedMemory": [], "evictionHard": {"memory.available": "-1"}, "reservedSystemCPUs": "0-99"},
            ["eviction_hard", "reserved_cpus"],
            id="nothing is concluded from what could not be read",
        ),
        pytest.param(
            {**MEMORY, "reservedMemory": [{"numaNode": 0, "limits": {"cpu": "1"}}]},
            ["validation"],
            id="reserved memory that is refused is not added up",
        ),
        pytest.param(
            {"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": {"x": "1", "y": "2"}},
            ["topology_manager"] * 2,
            id="every option of the topology manager",
        ),
    ],
)
def test_all_that_stops_a_kubelet_is_said_at_once(fields, wanted):
    assert sorted(stages(examined(**fields).findings)) == sorted(wanted)


def test_what_was_refused_is_not_the_basis_of_anything():
    basis = examined(reservedSystemCPUs="0-99", cpuManagerPolicy="static", memoryManagerPolicy="static").basis

    assert (basis.cpus, basis.memory, basis.cpu_policy) == (None, None, "static")


@pytest.mark.parametrize(
    ("fields", "advice", "paste"),
    [
        pytest.param(
            {"cpuManagerPolicy": "static"},
            "reserve CPUs for the system, such as its first core",
            {"reservedSystemCPUs": "0-1"},
            id="no CPU reserved",
        ),
        pytest.param(
            {"cpuManagerPolicy": "static", "kubeReservedCgroup": "/kube", "systemReserved": {"memory": "1Gi"}},
            "reserve CPUs for the system, such as its first core",
            {"systemReserved": {"memory": "1Gi", "cpu": "2"}},
            id="no CPU reserved, and none may be listed",
        ),
        pytest.param(
            {
                **STATIC,
                "featureGates": {"MemoryQoS": False},
                "cpuManagerPolicyOptions": {"distribute-cpus-across-cores": "true"},
            },
            "turn on the feature gate CPUManagerPolicyAlphaOptions",
            {"featureGates": {"MemoryQoS": False, "CPUManagerPolicyAlphaOptions": True}},
            id="an alpha option without its gate",
        ),
        pytest.param(
            {
                **STATIC,
                "featureGates": {"CPUManagerPolicyBetaOptions": False},
                "cpuManagerPolicyOptions": {"distribute-cpus-across-numa": "true"},
            },
            "turn on the feature gate CPUManagerPolicyBetaOptions",
            {"featureGates": {"CPUManagerPolicyBetaOptions": True}},
            id="a beta option without its gate",
        ),
        pytest.param(
            {**MEMORY, "kubeReserved": {"memory": "1Gi"}},
            "reserve what adds up to 2Gi: systemReserved, kubeReserved and evictionHard together",
            {
                "reservedMemory": [
                    {"numaNode": 0, "limits": {"memory": "1Gi"}},
                    {"numaNode": 1, "limits": {"memory": "1Gi"}},
                ]
            },
            id="reserved memory that does not add up",
        ),
    ],
)
def test_what_is_printed_to_paste_lets_the_kubelet_start(fields, advice, paste):
    (error,) = of(Severity.ERROR, examined(**fields).findings)

    assert error.advice == advice
    assert yaml.safe_load(error.paste) == paste
    assert not of(Severity.ERROR, examined(**{**fields, **paste}).findings)


@given(
    machines(max_nodes=10), st.sampled_from(["1", "500m", "2", "100"]), st.sampled_from(["1Gi", "1", "3Mi", "100Gi"])
)
def test_on_any_machine_what_is_printed_to_paste_is_taken(on, cpu, memory):
    """Each error that has something to paste is gone with it, and nothing else is wrong that was not before."""
    fields = {
        "topologyManagerPolicy": "restricted",
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true", "distribute-cpus-across-cores": "false"},
        "memoryManagerPolicy": "Static",
        "systemReserved": {"cpu": cpu, "memory": memory},
    }
    before = of(Severity.ERROR, examined(on, **fields).findings)

    for error in before:
        fields |= yaml.safe_load(error.paste) if error.paste else {}
    after = of(Severity.ERROR, examined(on, **fields).findings)

    assert [one.said for one in after] == [one.said for one in before if not one.paste]


def test_more_numa_nodes_than_a_kubelet_takes_can_be_allowed():
    many = machine("pack:10 numa:1 core:1 pu:1")
    fields = {"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "1"}}

    found = examined(many, **fields).findings

    (error,) = of(Severity.ERROR, found)
    assert error.said == "unsupported on machines with more than 8 NUMA Nodes"
    again = examined(many, **{**fields, **yaml.safe_load(error.paste)}).findings
    assert not of(Severity.ERROR, again)
    assert "the machine has 10 NUMA nodes: up to 1023 hints a resource" in of(Severity.WARNING, again)[0].what


def test_distances_that_are_not_told_are_missed():
    blind = Machine(cpus=machine().cpus, nodes=machine().nodes)
    options = {"prefer-closest-numa-nodes": "true"}

    found = examined(blind, topologyManagerPolicy="best-effort", topologyManagerPolicyOptions=options).findings

    (error,) = of(Severity.ERROR, found)
    assert error.said == "cannot discover NUMA topology: error getting NUMA distances from cadvisor"
    assert error.advice == "leave out prefer-closest-numa-nodes"


@pytest.mark.parametrize(
    ("policy", "shape", "said"),
    [
        pytest.param("single-numa-node", "pack:2 numa:2 core:2 pu:1", "Topolgy manager single-numa-node", id="policy"),
        pytest.param("restricted", "numa:1 pack:2 core:2 pu:1", "Align by socket is not compatible", id="machine"),
    ],
)
def test_align_by_socket_does_not_go_with_everything(policy, shape, said):
    fields = {"cpuManagerPolicyOptions": {"align-by-socket": "true"}, "topologyManagerPolicy": policy}

    found = examined(machine(shape), **STATIC, **fields).findings

    errors = of(Severity.ERROR, found)
    assert [said in one.said for one in errors] == [False, True]  # the gate comes first
    assert errors[1].advice.startswith("leave out align-by-socket")


def test_memory_can_be_too_little_to_reserve():
    fields = {"memoryManagerPolicy": "Static", "systemReserved": {"memory": "64Gi"}}

    found = examined(machine(), **fields).findings

    memory, excess = of(Severity.ERROR, found)
    assert memory.advice == "65636Mi of memory cannot be reserved: the NUMA nodes have 32Gi"
    assert not memory.paste
    assert excess.what == "the kubelet stops at node_allocatable: 65636Mi of memory is reserved, and there is 32Gi"


@pytest.mark.parametrize(
    ("on", "fields", "advice"),
    [
        pytest.param(
            machine(), {"evictionHard": {}}, "reserve memory: systemReserved.memory, kubeReserved.memory or", id="no"
        ),
        pytest.param(machine(memory=0), {}, "the machine does not say how much memory its NUMA nodes have", id="blind"),
    ],
)
def test_where_nothing_can_be_proposed_it_is_said_why(on, fields, advice):
    found = examined(on, memoryManagerPolicy="Static", **fields).findings

    assert of(Severity.ERROR, found)[0].advice.startswith(advice)


def test_a_list_of_reserved_memory_that_is_refused_is_replaced():
    found = examined(**{**MEMORY, "reservedMemory": [{"numaNode": 0, "limits": {"memory": "0"}}]}).findings

    (note,) = [one for one in of(Severity.NOTE, found) if one.paste]
    assert not of(Severity.ERROR, examined(**{**MEMORY, **yaml.safe_load(note.paste)}).findings)


@pytest.mark.parametrize(
    ("fields", "where", "what"),
    [
        pytest.param(
            {"evictionHard": {"nodefs.available": "5%"}},
            "evictionHard",
            "it is given without memory.available: no memory is kept free, and the usual 100Mi does not apply",
            id="thresholds without memory",
        ),
        pytest.param({"reservedCPUs": "0"}, "", 'unknown field "reservedCPUs" is overlooked', id="a field unknown"),
        pytest.param(
            {"topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"}},
            "topologyManagerPolicyOptions",
            "it is not looked at under topologyManagerPolicy none",
            id="options of no policy",
        ),
        pytest.param(
            {"topologyManagerScope": "pod"},
            "topologyManagerScope",
            "it is not looked at under topologyManagerPolicy none",
            id="the scope of no policy",
        ),
        pytest.param(
            {"reservedMemory": MEMORY["reservedMemory"]},
            "reservedMemory",
            "it is not looked at under memoryManagerPolicy None",
            id="reserved memory without a policy",
        ),
        pytest.param(
            {"reservedSystemCPUs": "0"},
            "reservedSystemCPUs",
            "under cpuManagerPolicy none they are only counted: containers run on them as on all others",
            id="reserved CPUs without a policy",
        ),
        pytest.param(
            {**STATIC, "systemReserved": {"cpu": "4"}},
            "systemReserved[cpu]",
            "it is not looked at beside reservedSystemCPUs: 2 CPUs are reserved in all",
            id="CPUs reserved twice",
        ),
        pytest.param(
            {**STATIC, "kubeReserved": {"cpu": "2"}},
            "kubeReserved[cpu]",
            "it is not looked at beside reservedSystemCPUs: 2 CPUs are reserved in all",
            id="CPUs reserved for Kubernetes too",
        ),
        pytest.param(
            MEMORY,
            "memoryManagerPolicy",
            "memory is pinned, but not to where a container's CPUs and devices are: topologyManagerPolicy is none",
            id="memory that is not aligned",
        ),
        pytest.param(
            {
                "topologyManagerPolicy": "single-numa-node",
                "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
            },
            "topologyManagerPolicyOptions[prefer-closest-numa-nodes]",
            "it changes nothing under single-numa-node, where one node is chosen, never several",
            id="the closest of one",
        ),
        pytest.param(
            {**STATIC, "reservedSystemCPUs": "0", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}},
            "reservedSystemCPUs",
            "core 0 (CPUs 0-1) is reserved in part: full-pcpus-only does not count CPU 1 as free, yet a container",
            id="half a core reserved",
        ),
        pytest.param(
            {**STATIC, "reservedSystemCPUs": "0-15"},
            "reservedSystemCPUs",
            "all CPUs are reserved: no container can own any",
            id="nothing left",
        ),
        pytest.param(
            {**STATIC, "reservedSystemCPUs": "0-15", "cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"}},
            "reservedSystemCPUs",
            "all CPUs are reserved: no container can own any, and none is left for the others to share",
            id="nothing left at all",
        ),
        pytest.param(
            {
                **MEMORY,
                "topologyManagerPolicy": "restricted",
                "systemReserved": {"memory": "20Gi"},
                "evictionHard": {"memory.available": "1Gi"},
                "reservedMemory": [{"numaNode": 1, "limits": {"memory": "21Gi"}}],
            },
            "reservedMemory",
            "21Gi of memory is reserved on NUMA node 1, which has 16Gi: the kubelet does not look, and believes",
            id="more than a node has",
        ),
    ],
)
def test_what_surprises_people_is_said(fields, where, what):
    found = examined(**fields).findings

    (warning,) = of(Severity.WARNING, found)
    assert (warning.where, warning.what[: len(what)]) == (where, what)
    assert warning.advice
    assert not of(Severity.ERROR, found)
    if warning.paste:
        assert not of(Severity.WARNING, examined(**{**fields, **yaml.safe_load(warning.paste)}).findings)


@pytest.mark.parametrize(
    ("on", "fields", "what"),
    [
        pytest.param(
            machine("pack:1 numa:1 core:4 pu:1"),
            {"topologyManagerPolicy": "restricted"},
            "the machine has one NUMA node, so there is nothing to align",
            id="one node",
        ),
        pytest.param(
            machine(),
            STATIC,
            "containers own CPUs, which are not aligned with their devices: topologyManagerPolicy is none",
            id="CPUs without a topology policy",
        ),
        pytest.param(
            machine(),
            {"topologyManagerPolicy": "restricted"},
            "only devices are aligned: the CPU and the memory manager have no policy of their own",
            id="only devices",
        ),
        pytest.param(
            machine(),
            STATIC,
            "all reserved CPUs are on NUMA node 0: 6 of its 8 are left to be owned",
            id="reserved on one side",
        ),
        pytest.param(machine(), STATIC, "containers that own no CPUs run on the reserved ones too", id="shared"),
        pytest.param(
            machine(),
            {**STATIC, "cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"}},
            "once containers own every CPU that is not reserved, the kubelet does not start again",
            id="strictly reserved",
        ),
    ],
)
def test_what_is_worth_knowing_is_no_trouble(on, fields, what):
    found = examined(on, **fields).findings

    assert [one for one in of(Severity.NOTE, found) if one.what.startswith(what)]
    assert not of(Severity.ERROR, found) + of(Severity.WARNING, found)


def test_a_sound_configuration_is_told_what_it_comes_to():
    fields = {**STATIC, **MEMORY, "reservedSystemCPUs": "0-1,8-9", "topologyManagerPolicy": "restricted"}

    found = examined(**fields, topologyManagerScope="pod").findings

    assert [one.what for one in of(Severity.OK, found)] == [
        "it starts: policy restricted, scope pod",
        "it starts: policy static, CPUs 0-1,8-9 reserved, 12 for containers to own",
        "it starts: policy Static, 1Gi on NUMA node 0 reserved",
    ]


def test_keys_given_twice_are_said_though_something_else_is_wrong():
    lines = b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 1\nmaxPods: x\n"

    found = check_configuration(lines, machine(), name="k").findings

    assert [one.what for one in found][:2] == [
        "the kubelet stops at load",
        'line 4: key "maxPods" is set already; the last one counts',
    ]


def test_amounts_too_far_apart_to_be_added_are_left_out():
    found = examined(systemReserved={"memory": "1e200000"}, kubeReserved={"memory": "1"}).findings

    assert stages(found) == ["system_reserved"]


def test_a_machine_that_does_not_tell_its_cpus_stops_the_static_policy():
    blind = replace(machine(), report=Told(cpus=(), num_cpus=0, num_sockets=0))

    (error, *_) = of(Severity.ERROR, examined(blind, cpuManagerPolicy="static", systemReserved={"cpu": "1"}).findings)

    assert (error.said, error.what) == ("could not detect number of cpus", "the kubelet stops at cpu_manager")


def test_nothing_is_said_about_a_manager_whose_policy_could_not_be_read():
    found = examined(cpuManagerPolicy=5, memoryManagerPolicy=7, reservedSystemCPUs="0").findings

    assert stages(found) == ["load", "load"]
    assert [one.what for one in of(Severity.OK, found)] == ["policy none: nothing is aligned"]
    assert not of(Severity.WARNING, found)


def test_a_report_is_healthy_without_errors_and_warnings():
    sound, odd, broken = (
        DoctorReport(examined(**fields).findings)
        for fields in (STATIC, {**STATIC, "topologyManagerScope": "pod"}, {"cpuManagerPolicy": "static"})
    )

    assert [one.healthy for one in (sound, odd, broken)] == [True, False, False]
    assert broken.to_document()["healthy"] is False
    assert {one.area for one in sound.of(Area.CPUS)} == {Area.CPUS}


def test_findings_are_plain_json():
    found = examined(cpuManagerPolicy="static").findings

    documents = [one.to_document() for one in found]

    assert json.loads(json.dumps(documents)) == documents
    assert documents[1]["severity"] == "error"


def test_hugepages_cannot_be_reserved_and_are_not_proposed():
    nodes = tuple(NumaNode(node, 16 * GIB, (HugePages(1 << 21, 512),)) for node in (0, 1))
    on = Machine(cpus=machine().cpus, nodes=nodes, distances=Distances({0: {0: 10, 1: 20}, 1: {0: 20, 1: 10}}))
    entries = [{"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}}]

    (error,) = of(Severity.ERROR, examined(on, **{**MEMORY, "reservedMemory": entries}).findings)

    assert 'of type "hugepages-2Mi"' in error.said
    assert "hugepages" not in error.paste


def test_the_text_helper_is_what_a_kubelet_reads():
    assert configuration.read(text(maxPods=7)).max_pods == 7
