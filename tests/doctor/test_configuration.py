"""Checks of a configuration on a machine: every error that stops a kubelet, in its own words, with advice."""

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.machine import CadvisorReport, Distances, HugePages, Machine, NumaNode
from alignup.doctor.configuration import check_configuration
from alignup.doctor.findings import Area, DoctorReport, Severity
from alignup.kubernetes import configuration
from tests.conformance.test_configuration import machine_of
from tests.doctor.helpers import GIB, MEMORY, STATIC, by_severity, cases, check, machine, text
from tests.strategies import machines

NRI = "alignup nri can run beside this kubelet with"
STAGES = [str(stage) for stage in configuration.StartupStage]


def stages(findings):
    summaries = [finding.summary for finding in by_severity(Severity.ERROR, findings)]
    by_failure = {stage.failure: str(stage) for stage in configuration.StartupStage}
    return [by_failure[text.partition(":")[0]] for text in summaries]


def test_the_stage_where_a_kubelet_stops_is_found(request):
    """The stage and the message are the kubelet's; further errors are those of other managers."""
    for case in cases(request, "configuration.jsonl.gz"):
        on, storage = machine_of(case["machine"]), case["machine"]["ephemeral_storage"]
        findings = check_configuration(case["text"].encode(), on, name="CONFIG", ephemeral_storage=storage).findings
        said = stages(findings)
        if case["stage"] == "ok":
            assert not said, case
            continue
        assert case["stage"] in said, case
        assert min(map(STAGES.index, said)) == STAGES.index(case["stage"]), case
        for manager, texts in (case.get("managers") or {}).items():
            ours = {
                finding.kubelet_message
                for finding in by_severity(Severity.ERROR, findings)
                if manager.replace("_", " ") in finding.summary
            }
            assert ours & {*texts} if texts else not ours, case


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_an_error(data):
    assert by_severity(Severity.ERROR, check_configuration(data, machine(), name="x").findings)


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
            id="two invalid policies",
        ),
        pytest.param(
            {"maxPods": "many", "kubeReserved": {"gpu": "1"}, "systemReserved": {"cpu": "x"}, "cpuManagerPolicy": "y"},
            ["load", "kube_reserved", "system_reserved", "cpu_manager"],
            id="a value of the wrong type and reservations",
        ),
        pytest.param(
            {**STATIC, "cpuManagerPolicyOptions": {"a": "true", "full-pcpus-only": "yes", "align-by-socket": "1"}},
            ["cpu_manager"] * 3,
            id="every option",
        ),
        pytest.param(
            {**MEMORY, "reservedMemory": [], "evictionHard": {"memory.available": "-1"}, "reservedSystemCPUs": "0-99"},
            ["eviction_hard", "reserved_cpus"],
            id="no conclusions from unreadable fields",
        ),
        pytest.param(
            {**MEMORY, "reservedMemory": [{"numaNode": 0, "limits": {"cpu": "1"}}]},
            ["validation"],
            id="invalid reserved memory is not added up",
        ),
        pytest.param(
            {"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": {"x": "1", "y": "2"}},
            ["topology_manager"] * 2,
            id="every option of the topology manager",
        ),
    ],
)
def test_all_errors_are_found_at_once(fields, wanted):
    assert sorted(stages(check(**fields).findings)) == sorted(wanted)


def test_invalid_fields_are_not_used_to_check_state():
    config = check(reservedSystemCPUs="0-99", cpuManagerPolicy="static", memoryManagerPolicy="static").manager_config

    assert (config.cpus, config.memory, config.cpu_policy) == (None, None, "static")


@pytest.mark.parametrize(
    ("fields", "advice", "paste"),
    [
        pytest.param(
            {"cpuManagerPolicy": "static"},
            "reserve CPUs for system daemons, such as the first core",
            {"reservedSystemCPUs": "0-1"},
            id="no CPU reserved",
        ),
        pytest.param(
            {"cpuManagerPolicy": "static", "kubeReservedCgroup": "/kube", "systemReserved": {"memory": "1Gi"}},
            "reserve CPUs for system daemons, such as the first core",
            {"systemReserved": {"memory": "1Gi", "cpu": "2"}},
            id="no CPU reserved, and none may be listed",
        ),
        pytest.param(
            {
                **STATIC,
                "featureGates": {"MemoryQoS": False},
                "cpuManagerPolicyOptions": {"distribute-cpus-across-cores": "true"},
            },
            "enable the feature gate CPUManagerPolicyAlphaOptions",
            {"featureGates": {"MemoryQoS": False, "CPUManagerPolicyAlphaOptions": True}},
            id="an alpha option without its gate",
        ),
        pytest.param(
            {
                **STATIC,
                "featureGates": {"CPUManagerPolicyBetaOptions": False},
                "cpuManagerPolicyOptions": {"distribute-cpus-across-numa": "true"},
            },
            "enable the feature gate CPUManagerPolicyBetaOptions",
            {"featureGates": {"CPUManagerPolicyBetaOptions": True}},
            id="a beta option without its gate",
        ),
        pytest.param(
            {**MEMORY, "kubeReserved": {"memory": "1Gi"}},
            "make reservedMemory add up to 2Gi, the sum of systemReserved, kubeReserved and evictionHard",
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
def test_the_yaml_to_paste_fixes_the_error(fields, advice, paste):
    (error,) = by_severity(Severity.ERROR, check(**fields).findings)

    assert error.advice == advice
    assert yaml.safe_load(error.paste) == paste
    assert not by_severity(Severity.ERROR, check(**{**fields, **paste}).findings)


@given(
    machines(max_nodes=10), st.sampled_from(["1", "500m", "2", "100"]), st.sampled_from(["1Gi", "1", "3Mi", "100Gi"])
)
def test_on_any_machine_the_yaml_to_paste_is_accepted(on, cpu, memory):
    """Pasting the YAML removes its error and adds no other."""
    fields = {
        "topologyManagerPolicy": "restricted",
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true", "distribute-cpus-across-cores": "false"},
        "memoryManagerPolicy": "Static",
        "systemReserved": {"cpu": cpu, "memory": memory},
    }
    before = by_severity(Severity.ERROR, check(on, **fields).findings)

    for error in before:
        fields |= yaml.safe_load(error.paste) if error.paste else {}
    after = by_severity(Severity.ERROR, check(on, **fields).findings)

    assert [finding.kubelet_message for finding in after] == [
        finding.kubelet_message for finding in before if not finding.paste
    ]


def test_the_limit_of_numa_nodes_can_be_raised():
    many = machine("pack:10 numa:1 core:1 pu:1")
    fields = {"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "1"}}

    findings = check(many, **fields).findings

    (error,) = by_severity(Severity.ERROR, findings)
    assert error.kubelet_message == "unsupported on machines with more than 8 NUMA Nodes"
    again = check(many, **{**fields, **yaml.safe_load(error.paste)}).findings
    assert not by_severity(Severity.ERROR, again)
    assert (
        "the machine has 10 NUMA nodes: up to 1023 hints per resource"
        in by_severity(Severity.WARNING, again)[0].summary
    )


def test_missing_distances_are_an_error():
    blind = Machine(cpus=machine().cpus, nodes=machine().nodes)
    options = {"prefer-closest-numa-nodes": "true"}

    findings = check(blind, topologyManagerPolicy="best-effort", topologyManagerPolicyOptions=options).findings

    (error,) = by_severity(Severity.ERROR, findings)
    assert error.kubelet_message == "cannot discover NUMA topology: error getting NUMA distances from cadvisor"
    assert error.advice == "remove prefer-closest-numa-nodes"


@pytest.mark.parametrize(
    ("policy", "shape", "said"),
    [
        pytest.param("single-numa-node", "pack:2 numa:2 core:2 pu:1", "Topolgy manager single-numa-node", id="policy"),
        pytest.param("restricted", "numa:1 pack:2 core:2 pu:1", "Align by socket is not compatible", id="machine"),
    ],
)
def test_align_by_socket_depends_on_policy_and_machine(policy, shape, said):
    fields = {"cpuManagerPolicyOptions": {"align-by-socket": "true"}, "topologyManagerPolicy": policy}

    findings = check(machine(shape), **STATIC, **fields).findings

    errors = by_severity(Severity.ERROR, findings)
    assert [said in finding.kubelet_message for finding in errors] == [False, True]  # the gate comes first
    assert errors[1].advice.startswith("remove align-by-socket")


def test_more_memory_may_be_reserved_than_exists():
    fields = {"memoryManagerPolicy": "Static", "systemReserved": {"memory": "64Gi"}}

    findings = check(machine(), **fields).findings

    memory, excess = by_severity(Severity.ERROR, findings)
    assert memory.advice == "65636Mi of memory cannot be reserved: the NUMA nodes have 32Gi"
    assert not memory.paste
    assert (
        excess.summary
        == "the kubelet stops at node allocatable: 65636Mi of memory is reserved, but the machine has 32Gi"
    )


@pytest.mark.parametrize(
    ("on", "fields", "advice"),
    [
        pytest.param(
            machine(),
            {"evictionHard": {}},
            "reserve memory with systemReserved.memory, kubeReserved.memory or",
            id="no",
        ),
        pytest.param(
            machine(memory=0), {}, "use a machine description that includes the memory of its NUMA nodes", id="blind"
        ),
    ],
)
def test_without_a_proposal_the_advice_gives_the_reason(on, fields, advice):
    findings = check(on, memoryManagerPolicy="Static", **fields).findings

    assert by_severity(Severity.ERROR, findings)[0].advice.startswith(advice)


def test_an_invalid_reserved_memory_gets_a_proposal():
    findings = check(**{**MEMORY, "reservedMemory": [{"numaNode": 0, "limits": {"memory": "0"}}]}).findings

    (note,) = [finding for finding in by_severity(Severity.NOTE, findings) if finding.paste]
    assert not by_severity(Severity.ERROR, check(**{**MEMORY, **yaml.safe_load(note.paste)}).findings)


@pytest.mark.parametrize(
    ("fields", "where", "summary"),
    [
        pytest.param(
            {"evictionHard": {"nodefs.available": "5%"}},
            "evictionHard",
            "memory.available is missing: the kubelet keeps no memory free, and the default of 100Mi does not apply",
            id="eviction thresholds without memory",
        ),
        pytest.param(
            {"reservedCPUs": "0"}, "", 'the kubelet ignores unknown field "reservedCPUs"', id="an unknown field"
        ),
        pytest.param(
            {"topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"}},
            "topologyManagerPolicyOptions",
            "ignored under topologyManagerPolicy none",
            id="options under policy none",
        ),
        pytest.param(
            {"topologyManagerScope": "pod"},
            "topologyManagerScope",
            "ignored under topologyManagerPolicy none",
            id="the scope under policy none",
        ),
        pytest.param(
            {"reservedMemory": MEMORY["reservedMemory"]},
            "reservedMemory",
            "ignored under memoryManagerPolicy None",
            id="reserved memory without a policy",
        ),
        pytest.param(
            {"reservedSystemCPUs": "0"},
            "reservedSystemCPUs",
            "cpuManagerPolicy none only counts these CPUs: containers run on them as on all others",
            id="reserved CPUs without a policy",
        ),
        pytest.param(
            {**STATIC, "systemReserved": {"cpu": "4"}},
            "systemReserved[cpu]",
            "ignored because reservedSystemCPUs is set: 2 CPUs are reserved in total",
            id="CPUs reserved twice",
        ),
        pytest.param(
            {**STATIC, "kubeReserved": {"cpu": "2"}},
            "kubeReserved[cpu]",
            "ignored because reservedSystemCPUs is set: 2 CPUs are reserved in total",
            id="CPUs reserved for Kubernetes too",
        ),
        pytest.param(
            MEMORY,
            "memoryManagerPolicy",
            "memory is pinned, but not aligned with CPUs and devices: topologyManagerPolicy is none",
            id="memory that is not aligned",
        ),
        pytest.param(
            {
                "topologyManagerPolicy": "single-numa-node",
                "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
            },
            "topologyManagerPolicyOptions[prefer-closest-numa-nodes]",
            "no effect under single-numa-node, which always chooses one node",
            id="the closest of one node",
        ),
        pytest.param(
            {**STATIC, "reservedSystemCPUs": "0", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}},
            "reservedSystemCPUs",
            "core 0 (CPUs 0-1) is partly reserved: full-pcpus-only does not count CPU 1 as free, yet a container",
            id="half a core reserved",
        ),
        pytest.param(
            {**STATIC, "reservedSystemCPUs": "0-15"},
            "reservedSystemCPUs",
            "all CPUs are reserved: no container can get exclusive CPUs",
            id="no CPU left",
        ),
        pytest.param(
            {**STATIC, "reservedSystemCPUs": "0-15", "cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"}},
            "reservedSystemCPUs",
            "all CPUs are reserved: no container can get exclusive CPUs, and the shared pool is empty",
            id="nothing left, not even shared",
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
            "21Gi of memory is reserved on NUMA node 1, which has 16Gi: the kubelet does not check this, and assumes",
            id="more than a node has",
        ),
    ],
)
def test_surprising_settings_are_warnings(fields, where, summary):
    findings = check(**fields).findings

    (warning,) = by_severity(Severity.WARNING, findings)
    assert (warning.where, warning.summary[: len(summary)]) == (where, summary)
    assert warning.advice
    assert not by_severity(Severity.ERROR, findings)
    if warning.paste:
        assert not by_severity(Severity.WARNING, check(**{**fields, **yaml.safe_load(warning.paste)}).findings)


@pytest.mark.parametrize(
    ("on", "fields", "summary"),
    [
        pytest.param(
            machine("pack:1 numa:1 core:4 pu:1"),
            {"topologyManagerPolicy": "restricted"},
            "the machine has one NUMA node: there is nothing to align",
            id="one node",
        ),
        pytest.param(
            machine(),
            STATIC,
            "exclusive CPUs are not aligned with devices: topologyManagerPolicy is none",
            id="CPUs without a topology policy",
        ),
        pytest.param(
            machine(),
            {"topologyManagerPolicy": "restricted"},
            "only devices are aligned: the CPU and memory managers have policy none",
            id="only devices",
        ),
        pytest.param(
            machine(),
            STATIC,
            "all reserved CPUs are on NUMA node 0: 6 of its 8 are left for exclusive use",
            id="reserved on one node",
        ),
        pytest.param(machine(), STATIC, "containers without exclusive CPUs also run on the reserved CPUs", id="shared"),
        pytest.param(
            machine(),
            {**STATIC, "cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"}},
            "once containers hold every CPU that is not reserved, the kubelet does not restart",
            id="strict reservation",
        ),
    ],
)
def test_notes_are_not_problems(on, fields, summary):
    findings = check(on, **fields).findings

    assert [finding for finding in by_severity(Severity.NOTE, findings) if finding.summary.startswith(summary)]
    assert not by_severity(Severity.ERROR, findings) + by_severity(Severity.WARNING, findings)


def test_a_valid_configuration_lists_its_effect():
    fields = {**STATIC, **MEMORY, "reservedSystemCPUs": "0-1,8-9", "topologyManagerPolicy": "restricted"}

    findings = check(**fields, topologyManagerScope="pod").findings

    assert [finding.summary for finding in by_severity(Severity.OK, findings)] == [
        "starts with policy restricted, scope pod",
        "starts with policy static: CPUs 0-1,8-9 reserved, 12 for exclusive use",
        "starts with policy Static: 1Gi on NUMA node 0 reserved",
        f"{NRI} --mode assist; --mode decide needs cpuManagerPolicy: none and memoryManagerPolicy: None",
    ]


def test_duplicate_keys_are_reported_next_to_errors():
    lines = b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 1\nmaxPods: x\n"

    findings = check_configuration(lines, machine(), name="k").findings

    assert [finding.summary for finding in findings][:2] == [
        "the kubelet stops at load: must be a 32-bit integer, not a string",
        'line 4: duplicate key "maxPods": the last value is used',
    ]


def test_amounts_that_cannot_be_added_are_dropped():
    findings = check(systemReserved={"memory": "1e200000"}, kubeReserved={"memory": "1"}).findings

    (error,) = by_severity(Severity.ERROR, findings)
    assert error.own_limit
    assert error.summary == "alignup cannot check it: amounts 200000 digits apart cannot be added (a limit of alignup)"
    assert error.kubelet_message == ""


def test_a_reservation_that_cannot_be_subtracted_from_the_storage_is_an_error():
    invalid = text(systemReserved={"ephemeral-storage": "1e10003"}, topologyManagerPolicy="foo")

    findings = check_configuration(invalid, machine(), name="CONFIG", ephemeral_storage=5).findings

    limit, kubelet = sorted(by_severity(Severity.ERROR, findings), key=lambda finding: finding.summary)
    assert limit.own_limit
    assert (kubelet.summary, kubelet.own_limit) == ("the kubelet stops at validation", False)


@pytest.mark.parametrize(
    ("signal", "effect"),
    [
        ("memory.available", ", and rejects every pod that requests memory"),
        ("nodefs.available", ", and rejects every pod that requests ephemeral-storage"),
        ("pid.available", ""),
    ],
)
def test_a_threshold_that_is_not_a_number_is_a_warning(signal, effect):
    findings = check(evictionHard={"memory.available": "100Mi", signal: "NaN%"}).findings

    (warning,) = by_severity(Severity.WARNING, findings)
    assert warning.where == f"evictionHard[{signal}]"
    assert warning.summary == (
        f"NaN% is not a number: the kubelet accepts it, but never evicts a pod for this signal{effect}"
    )


def test_words_of_alignup_are_not_shown_as_those_of_the_kubelet():
    """What cannot be decoded is in our words, and so are our limits; other errors are the kubelet's."""
    deep = b"a: " + b"[" * 200 + b"]" * 200

    (undecodable,) = by_severity(Severity.ERROR, check(maxPods="many").findings)
    (limit,) = check_configuration(deep, machine(), name="k").findings
    (real,) = by_severity(Severity.ERROR, check(topologyManagerPolicy="strict").findings)

    assert (undecodable.summary, undecodable.kubelet_message) == (
        "the kubelet stops at load: must be a 32-bit integer, not a string",
        "",
    )
    assert (limit.summary, limit.kubelet_message) == (
        "alignup cannot check it: line 1: nested more than 100 levels deep (a limit of alignup)",
        "",
    )
    assert real.kubelet_message.startswith("invalid configuration: ")


def test_a_machine_without_cpus_stops_the_static_policy():
    blind = replace(machine(), report=CadvisorReport(cpus=(), num_cpus=0, num_sockets=0))

    (error, *_) = by_severity(
        Severity.ERROR, check(blind, cpuManagerPolicy="static", systemReserved={"cpu": "1"}).findings
    )

    assert (error.kubelet_message, error.summary) == (
        "could not detect number of cpus",
        "the kubelet stops at cpu manager",
    )


def test_a_manager_with_an_unreadable_policy_is_skipped():
    findings = check(cpuManagerPolicy=5, memoryManagerPolicy=7, reservedSystemCPUs="0").findings

    assert stages(findings) == ["load", "load"]
    assert [finding.summary for finding in by_severity(Severity.OK, findings)] == ["policy none: nothing is aligned"]
    assert not by_severity(Severity.WARNING, findings)


def test_a_report_is_healthy_without_errors_and_warnings():
    sound, odd, broken = (
        DoctorReport(check(**fields).findings)
        for fields in (STATIC, {**STATIC, "topologyManagerScope": "pod"}, {"cpuManagerPolicy": "static"})
    )

    assert [finding.healthy for finding in (sound, odd, broken)] == [True, False, False]
    assert broken.to_document()["healthy"] is False
    assert {finding.area for finding in sound.of(Area.CPUS)} == {Area.CPUS}


def test_findings_are_plain_json():
    findings = check(cpuManagerPolicy="static").findings

    documents = [finding.to_document() for finding in findings]

    assert json.loads(json.dumps(documents)) == documents
    assert documents[1]["severity"] == "error"


def test_huge_pages_cannot_be_reserved():
    nodes = tuple(NumaNode(node, 16 * GIB, (HugePages(1 << 21, 512),)) for node in (0, 1))
    on = Machine(cpus=machine().cpus, nodes=nodes, distances=Distances({0: {0: 10, 1: 20}, 1: {0: 20, 1: 10}}))
    entries = [{"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}}]

    (error,) = by_severity(Severity.ERROR, check(on, **{**MEMORY, "reservedMemory": entries}).findings)

    assert 'of type "hugepages-2Mi"' in error.kubelet_message
    assert "hugepages" not in error.paste


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, "--mode assist or --mode decide"),
        (STATIC, "--mode assist; --mode decide needs cpuManagerPolicy: none"),
        (STATIC | MEMORY, "--mode assist; --mode decide needs cpuManagerPolicy: none and memoryManagerPolicy: None"),
    ],
)
def test_it_says_which_modes_of_nri_can_run_beside_the_kubelet(fields, wanted):
    (finding,) = [finding for finding in check(**fields).findings if finding.area is Area.NRI]

    assert finding.summary == f"{NRI} {wanted}"
