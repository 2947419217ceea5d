from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ConfigurationError, SettingsError
from alignup.align.host import Host, node_allocatable
from alignup.align.machine import Cpu, HugePages, Machine, NumaNode
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, Scope
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
from tests.strategies import GIB, machines

#: Two NUMA nodes with four CPUs and 1 GiB of huge pages each.
MACHINE = Machine(
    cpus=tuple(Cpu(cpu, core=cpu, socket=cpu // 4, node=cpu // 4) for cpu in range(8)),
    nodes=tuple(NumaNode(node, 4 * GIB, (HugePages(GIB, 1),)) for node in range(2)),
)
#: A configuration with which all managers start on it.
STATIC = Configuration(
    topology_manager_policy="restricted",
    topology_manager_scope="pod",
    cpu_manager_policy="static",
    memory_manager_policy="Static",
    reserved_system_cpus="0,4",
    system_reserved={"memory": "924Mi"},
    reserved_memory=(
        ReservedMemory(0, {"memory": Quantity.parse("512Mi")}),
        ReservedMemory(1, {"memory": Quantity.parse("512Mi")}),
    ),
)
TEXTS = st.sampled_from(["1", "0", "-1", "100Mi", "1e9999", "x", "", "0.0005", "10%", "0%", "NaN%", "1e39%", "9E"])
NAMES = st.sampled_from(["cpu", "memory", "ephemeral-storage", "pid", "memory.available", "nodefs.available", "x"])
configurations = st.builds(
    Configuration,
    topology_manager_policy=st.sampled_from(list(Policy)),
    topology_manager_scope=st.sampled_from(list(Scope)),
    topology_manager_policy_options=st.dictionaries(st.sampled_from(["max-allowable-numa-nodes", "x"]), TEXTS),
    cpu_manager_policy=st.sampled_from(["none", "static", "x"]),
    cpu_manager_policy_options=st.dictionaries(st.sampled_from(["full-pcpus-only", "align-by-socket"]), TEXTS),
    memory_manager_policy=st.sampled_from(["None", "Static", "BestEffort"]),
    reserved_memory=st.lists(
        st.builds(ReservedMemory, st.integers(0, 3), st.just({"memory": Quantity.parse("100Mi")})), max_size=2
    ).map(tuple),
    reserved_system_cpus=st.sampled_from(["", "0", "0-3", "0-99999999999"]),
    system_reserved=st.dictionaries(NAMES, TEXTS, max_size=2),
    kube_reserved=st.dictionaries(NAMES, TEXTS, max_size=2),
    eviction_hard=st.dictionaries(NAMES, TEXTS, max_size=2),
    pods_per_core=st.integers(0, 20),
)


def shown(amounts):
    return {name: str(amount) for name, amount in amounts.items()}


def reservation_error(configuration, *, machine=MACHINE):
    with pytest.raises(ConfigurationError) as raised:
        compute_reservations(configuration, machine)
    return raised.value


def test_host_settings_hold_the_whole_configuration():
    settings = host_settings(
        replace(STATIC, feature_gates={"AllAlpha": False, "PodLevelResourceManagers": True}), MACHINE
    )
    host = Host(MACHINE, settings)

    assert (settings.topology.policy, settings.topology.scope) == (Policy.RESTRICTED, Scope.POD)
    assert (settings.cpus.policy, settings.cpus.explicit, settings.cpus.reservation) == (
        "static",
        0b10001,
        Quantity.parse("2"),
    )
    assert shown(settings.reservation) == {"cpu": "2", "memory": "1Gi"}
    assert (settings.gates.on("PodLevelResourceManagers"), settings.max_pods) == (True, 110)
    assert host.settings is settings
    assert startup_errors(STATIC, MACHINE) == ()


def test_cpu_reservations_are_rounded_up_to_millionths_before_thousandths():
    settings = compute_reservations(Configuration(system_reserved={"cpu": "0.0004999999"}), MACHINE)

    assert settings.system_reserved["cpu"].milli() == 1


@pytest.mark.parametrize(
    ("configuration", "field", "message"),
    [
        (Configuration(reserved_system_cpus="7-8"), "reservedSystemCPUs", "7-8 is not a subset of online-cpus: 0-7"),
        (Configuration(reserved_system_cpus="0-99999999999"), "reservedSystemCPUs", "is not a subset of online-cpus"),
        (
            Configuration(kube_reserved={"hugepages-2Mi": "1"}, system_reserved={"gpu": "1"}),
            "kubeReserved[hugepages-2Mi]",
            "--kube-reserved value failed to parse",
        ),
        (Configuration(system_reserved={"memory": "-100m"}), "systemReserved[memory]", "cannot be negative: -100m"),
        (Configuration(eviction_hard={"memory.free": "1"}), "evictionHard[memory.free]", "unsupported eviction signal"),
        (Configuration(eviction_hard={"memory.available": "0"}), "evictionHard[memory.available]", "must be positive"),
        (Configuration(eviction_hard={"memory.available": "101%"}), "evictionHard[memory.available]", "<= 100%: 101%"),
        (
            Configuration(eviction_hard={"memory.available": "+1e39%"}),
            "evictionHard[memory.available]",
            'strconv.ParseFloat: parsing "+1e39": value out of range',
        ),
    ],
)
def test_invalid_reservations_name_the_field(configuration, field, message):
    """Vectors have all stages and messages: ``../../conformance/test_configuration.py``."""
    error = reservation_error(configuration)

    (problem,) = error.problems
    assert problem.field == field
    assert message in problem.message
    assert list(map(str, startup_errors(configuration, MACHINE))) == [str(error)]


@pytest.mark.parametrize(("text", "kept"), [("0x1p1%", 171798688), ("1_0%", 858993472)])
def test_percentages_are_numbers_of_go(text, kept):
    thresholds = {"memory.available": text, "nodefs.available": "5%"}

    settings = compute_reservations(Configuration(eviction_hard=thresholds), MACHINE)

    assert "ephemeral-storage" not in settings.reservation
    assert settings.reservation["memory"].value() == kept


def test_ephemeral_storage_counts_once_the_container_manager_runs():
    configuration = Configuration(kube_reserved={"ephemeral-storage": "1Gi"})

    resources = compute_node_allocatable(configuration, MACHINE, ephemeral_storage=100 * GIB)
    ignored = replace(configuration, local_storage_capacity_isolation=False)

    assert resources.capacity["ephemeral-storage"].value() == 100 * GIB
    assert resources.reservation["ephemeral-storage"].value() == 11 * GIB + 160
    assert resources.pods_limits["ephemeral-storage"].value() == 99 * GIB
    assert "ephemeral-storage" not in compute_node_allocatable(configuration, MACHINE).capacity
    assert "ephemeral-storage" not in compute_node_allocatable(ignored, MACHINE, ephemeral_storage=100 * GIB).capacity


def test_memory_is_reserved_even_if_the_capacity_is_unknown():
    silent = replace(MACHINE, nodes=(NumaNode(0), NumaNode(1)))
    configuration = Configuration(system_reserved={"memory": "1Gi"})

    assert shown(compute_reservations(configuration, silent).reservation) == {"memory": "1124Mi"}
    assert "memory" not in node_status(configuration, silent).capacity


@pytest.mark.parametrize(
    ("changes", "stage", "field"),
    [
        (
            {"topology_manager_policy_options": {"max-allowable-numa-nodes": "7"}},
            StartupStage.TOPOLOGY_MANAGER,
            "topologyManagerPolicyOptions",
        ),
        ({"cpu_manager_policy": "Static"}, StartupStage.CPU_MANAGER, "cpuManagerPolicy"),
        ({"reserved_system_cpus": ""}, StartupStage.CPU_MANAGER, "systemReserved[cpu]"),
        ({"cpu_manager_policy_options": {"x": "true"}}, StartupStage.CPU_MANAGER, "cpuManagerPolicyOptions"),
        ({"memory_manager_policy": "BestEffort"}, StartupStage.MEMORY_MANAGER, "memoryManagerPolicy"),
        ({"system_reserved": {}}, StartupStage.MEMORY_MANAGER, "reservedMemory"),
    ],
)
def test_the_error_of_each_manager_names_the_field(changes, stage, field):
    """Vectors have the messages: ``../../conformance/test_configuration.py``."""
    (error,) = startup_errors(replace(STATIC, **changes, source="node.yaml"), MACHINE)

    (problem,) = error.problems
    assert (error.stage, problem.field, problem.message) == (stage, field, str(error))
    assert (error.manager, error.source) == (stage.removesuffix("_manager"), "node.yaml")


def test_advice_is_a_configuration_that_works():
    wrong = replace(STATIC, reserved_memory=())
    (error,) = startup_errors(wrong, MACHINE)
    assert error.advice is not None

    advised = error.advice.partition("set ")[2]
    entries = read(
        f"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{advised}\n"
    ).reserved_memory

    assert startup_errors(replace(wrong, reserved_memory=entries), MACHINE) == ()
    (bare,) = startup_errors(replace(wrong, cpu_manager_policy="none", eviction_hard={}, system_reserved={}), MACHINE)
    assert bare.advice == "reserve memory: systemReserved.memory, kubeReserved.memory or evictionHard[memory.available]"


def test_the_limit_on_numa_nodes_can_be_disabled():
    many = Machine(
        cpus=tuple(Cpu(cpu, core=cpu, socket=0, node=cpu) for cpu in range(9)),
        nodes=tuple(NumaNode(node, GIB) for node in range(9)),
    )
    configuration = Configuration(topology_manager_policy="best-effort")

    (error,) = startup_errors(configuration, many)

    assert str(error) == "unsupported on machines with more than 8 NUMA Nodes"
    assert Host(many, host_settings(configuration, many, limit_nodes=False)).rules.topology.policy is Policy.BEST_EFFORT


def test_a_reservation_that_cannot_be_subtracted_from_the_storage_is_an_error():
    configuration = Configuration(system_reserved={"ephemeral-storage": "1e10003"})

    (error,) = startup_errors(configuration, MACHINE, ephemeral_storage=5)

    assert (error.stage, str(error)) == (
        StartupStage.NODE_ALLOCATABLE,
        "amounts 10003 digits apart cannot be added (a limit of alignup)",
    )
    assert startup_errors(configuration, MACHINE) == ()


@pytest.mark.parametrize("reserved", ["0", "1500m", "1Gi"])
def test_allocatable_memory_overflows_with_a_threshold_that_is_not_a_number(reserved):
    configuration = Configuration(eviction_hard={"memory.available": "NaN%"}, system_reserved={"memory": reserved})

    offered = node_allocatable(MACHINE, host_settings(configuration, MACHINE))

    assert offered.memory == node_status(configuration, MACHINE).allocatable["memory"].value() < 0


@given(configurations, machines(max_nodes=3, max_id=3), st.none() | st.integers(0, 1 << 40))
def test_a_host_starts_without_startup_errors(configuration, machine, storage):
    errors = startup_errors(configuration, machine, ephemeral_storage=storage)
    stages = [error.stage for error in errors]

    try:
        Host(machine, host_settings(configuration, machine))
    except SettingsError as error:
        assert str(error) == str(errors[0])
    else:
        assert set(stages) <= {StartupStage.NODE_ALLOCATABLE}
    assert stages == [stage for stage in StartupStage if stage in stages]


@given(configurations, machines(max_nodes=3, max_id=3))
def test_host_and_node_status_agree_on_allocatable(configuration, machine):
    """A kubelet with an over-reservation does not start."""
    try:
        settings = host_settings(configuration, machine)
    except ConfigurationError:
        return
    if compute_node_allocatable(configuration, machine).excess:
        return
    offered, status = node_allocatable(machine, settings), node_status(configuration, machine).allocatable

    assert offered.milli_cpu == status["cpu"].milli()
    assert offered.pods == status["pods"].value()
    if "memory" in status:
        assert offered.memory == status["memory"].value()
