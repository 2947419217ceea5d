"""KubeletConfiguration files: the stage at which a kubelet stops, what it says there, and all it works out before.

Texts of Go's decoders are compared by the field they name; everything else is the kubelet's, word for word.
"""

import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.errors import ConfigurationError
from alignup.align.host import Host
from alignup.align.machine import Cpu, Distances, HugePages, Machine, NumaNode
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts
from alignup.kubernetes.configuration import (
    Configuration,
    StartupStage,
    compute_node_allocatable,
    compute_reservations,
    host_settings,
    node_status,
    read,
    startup_errors,
)
from tests.conformance import harness
from tests.conformance.harness import Case

GO_FIELD = re.compile(r"Go struct field \w+\.([\w.]+)")
UNKNOWN = re.compile(r'unknown field "([^"]+)"')
REPEATED = re.compile(r'line (\d+): key "([^"]+)" already set in map')
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
PANIC = "failed to merge global and in-flight KubeletConfiguration while setting defaults, error: "
MANAGERS = (StartupStage.TOPOLOGY_MANAGER, StartupStage.CPU_MANAGER, StartupStage.MEMORY_MANAGER)


def test_configuration(request: pytest.FixtureRequest):
    harness.run(request, "configuration", check_case)


def check_case(case: Case) -> None:
    try:
        configuration = read(case["text"], name="CONFIG", release=case["release"])
    except ConfigurationError as error:
        assert error.stage == case["stage"], f"{error.stage}: {error}"
        CHECKS[StartupStage(error.stage)](case, error)
        return
    check_effective(case["effective"], configuration)
    check_warnings(case.get("strict_warning", ()), configuration.warnings)
    machine, storage = machine_of(case["machine"]), case["machine"]["ephemeral_storage"]
    errors = startup_errors(configuration, machine, ephemeral_storage=storage)
    assert (errors[0].stage if errors else "ok") == case["stage"], list(map(str, errors))
    if "passed" in case:
        check_passed(case["passed"], configuration, machine)
        check_managers(case, errors)
        check_started(case, configuration, machine)
        check_host(case, configuration, machine)
    else:
        assert {problem.message for problem in errors[0].problems} >= set(case["texts"])


def check_load(case: Case, error: ConfigurationError) -> None:
    for text in case["texts"]:
        if named := GO_FIELD.search(text):
            ours = [re.sub(r"\[[^]]*\]", "", problem.field) for problem in error.problems]
            assert named[1] in ours, text
        elif "duration" in text:
            assert text.partition("failed to decode: ")[2] in [problem.message for problem in error.problems]
        elif line := re.search(r"yaml: (line \d+)", text):
            assert line[1] in str(error)
        elif "was empty" in text:
            assert [text.endswith(problem.message) for problem in error.problems] == [True]
        elif missing := re.search(r"Object '(\w+)' is missing", text):
            assert [problem.field.lower() for problem in error.problems] == [missing[1].lower()]
        elif "no kind" in text:
            assert [problem.field in {"kind", "apiVersion"} for problem in error.problems] == [True]
        else:
            assert "quantities" in text or "couldn't get version/kind" in text, text


def check_panic(case: Case, error: ConfigurationError) -> None:
    ours = {problem.message for problem in error.problems}
    for text in case["texts"]:
        problem_text = text.removeprefix(PANIC)
        several = re.findall(r"[^,\[]+ is enabled, but depends on features that are disabled: \[[^]]*\]", problem_text)
        if several:
            assert {sentence.strip() for sentence in several} == ours
        else:
            assert problem_text in ours


def check_validation(case: Case, error: ConfigurationError) -> None:
    ours = [problem.message for problem in error.problems]
    assert sorted(ours) == sorted(set(case["errors_sorted"]))
    assert all(problem.field for problem in error.problems)
    if len(case["texts"]) == 1:
        assert case["texts"] == [ours[0] if len(ours) == 1 else f"[{', '.join(ours)}]"]


CHECKS = {
    StartupStage.LOAD: check_load,
    StartupStage.DEFAULTING_PANIC: check_panic,
    StartupStage.VALIDATION: check_validation,
}


def check_effective(expected: dict[str, Any], configuration: Configuration) -> None:
    ours: dict[str, Any] = {
        "cgroupsPerQOS": configuration.cgroups_per_qos,
        "cpuManagerPolicy": configuration.cpu_manager_policy,
        "cpuManagerPolicyOptions": configuration.cpu_manager_policy_options,
        "cpuManagerReconcilePeriod": str(configuration.cpu_manager_reconcile_period),
        "enforceNodeAllocatable": list(configuration.enforce_node_allocatable),
        "evictionHard": configuration.eviction_hard,
        "featureGates": configuration.feature_gates,
        "kubeReserved": configuration.kube_reserved,
        "kubeReservedCgroup": configuration.kube_reserved_cgroup,
        "localStorageCapacityIsolation": configuration.local_storage_capacity_isolation,
        "maxPods": configuration.max_pods,
        "memoryManagerPolicy": configuration.memory_manager_policy,
        "mergeDefaultEvictionSettings": configuration.merge_default_eviction_settings,
        "podsPerCore": configuration.pods_per_core,
        "qosReserved": configuration.qos_reserved,
        "reservedMemory": list(map(entry_of, configuration.reserved_memory)),
        "reservedSystemCPUs": configuration.reserved_system_cpus,
        "systemReserved": configuration.system_reserved,
        "systemReservedCgroup": configuration.system_reserved_cgroup,
        "topologyManagerPolicy": configuration.topology_manager_policy,
        "topologyManagerPolicyOptions": configuration.topology_manager_policy_options,
        "topologyManagerScope": configuration.topology_manager_scope,
    }
    assert {name: value or None for name, value in ours.items()} == {
        name: value or None for name, value in expected.items()
    }


def entry_of(entry: ReservedMemory) -> dict[str, Any]:
    limits = {name: str(amount) for name, amount in entry.limits.items()}
    dec = [name for name, amount in sorted(entry.limits.items()) if amount.as_int64() is None]
    return {"numaNode": entry.node, "limits": limits} | ({"not_int64": dec} if dec else {})


def check_warnings(expected: Iterable[str], ours: tuple[str, ...]) -> None:
    text = "\n".join(expected)
    unknown = {name for warning in ours for name in UNKNOWN.findall(warning)}
    repeated = {
        match.groups() for warning in ours if (match := re.match(r'line (\d+): duplicate key "([^"]+)"', warning))
    }
    assert unknown == set(UNKNOWN.findall(text))
    assert repeated == set(REPEATED.findall(text))
    assert bool(ours) is bool(text)


def check_passed(expected: dict[str, Any], configuration: Configuration, machine: Machine) -> None:
    ours = compute_reservations(configuration, machine)

    same(ours.system_reserved, expected["system_reserved"])
    same(ours.kube_reserved, expected["kube_reserved"])
    same(ours.reservation, expected["reservation"])
    assert bits.show(ours.reserved_system_cpus) == expected["reserved_system_cpus"]
    assert [
        (threshold.signal, threshold.percentage if threshold.quantity is None else str(threshold.quantity))
        for threshold in ours.thresholds
    ] == [
        (
            threshold["signal"],
            threshold["quantity"] if "quantity" in threshold else single(threshold.get("percentage", 0.0)),
        )
        for threshold in expected["thresholds"]
    ]


def check_managers(case: Case, errors: Iterable[ConfigurationError]) -> None:
    ours = {error.stage: str(error) for error in errors}
    for stage in MANAGERS:
        texts = case["managers"][stage]
        assert ours[stage] in texts if texts else stage not in ours, (stage, texts, ours)
    texts = {ADDRESS.sub("0xADDRESS", line) for line in case["started"]["error"]}
    reported = [
        " ".join(problem.message for problem in error.problems)
        for error in errors
        if error.stage == StartupStage.NODE_ALLOCATABLE
    ]
    assert (set(sentences(reported[0])) if reported else set()) == {
        sentence for text in texts for sentence in sentences(text)
    }


def check_started(case: Case, configuration: Configuration, machine: Machine) -> None:
    storage = case["machine"]["ephemeral_storage"]
    expected = case["started"]
    ours = compute_node_allocatable(configuration, machine, ephemeral_storage=storage)
    status = node_status(configuration, machine, ephemeral_storage=storage)

    same(ours.capacity, expected["capacity"])
    same(ours.reservation, expected["reservation"])
    same(ours.pods_limits, expected["pods_cgroup_limits"])
    assert {(excess.resource, str(excess.reservation), str(excess.capacity)) for excess in ours.excess} == {
        (excess["resource"], excess["reservation"], excess["capacity"]) for excess in expected.get("over_reserved", ())
    }
    same(status.capacity, case["node_status"]["capacity"])
    same(status.allocatable, case["node_status"]["allocatable"])


def check_host(case: Case, configuration: Configuration, machine: Machine) -> None:
    """A host with these settings starts, or the same manager rejects it with the same message."""
    stage = next((manager for manager in MANAGERS if case["managers"][manager]), None)
    try:
        Host(machine, host_settings(configuration, machine))
    except ValueError as error:
        assert stage
        assert str(error) in case["managers"][stage]
        assert getattr(error, "manager", None) == stage.removesuffix("_manager")
    else:
        assert stage is None


def same(ours: Amounts, expected: Mapping[str, str]) -> None:
    assert {name: str(amount) for name, amount in ours.items()} == dict(expected)
    assert all(amount == Quantity.parse(expected[name]) for name, amount in ours.items())


def single(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])


def sentences(text: str) -> list[str]:
    return re.findall(r"Resource .*?Expected capacity >= reservation\.", text)


def machine_of(described: Case) -> Machine:
    """Return the machine without checks: some have more huge pages than memory."""
    nodes = described["numa"]
    return Machine(
        cpus=tuple(
            Cpu(cpu, core=core[0], socket=number, node=node["id"])
            for number, node in enumerate(nodes)
            for core in node["cores"]
            for cpu in core
        ),
        nodes=tuple(NumaNode(node["id"], node["memory"], pages_of(node["hugepages"])) for node in nodes),
        distances=Distances.of_rows({node["id"]: [10 if node is other else 20 for other in nodes] for node in nodes}),
        memory=described["memory"],
        hugepages=pages_of(described["hugepages"]),
    )


def pages_of(described: Mapping[str, int]) -> tuple[HugePages, ...]:
    return tuple(HugePages(int(size) * 1024, count) for size, count in described.items())
