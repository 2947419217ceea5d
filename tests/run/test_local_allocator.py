"""Admitting runs from the user's own ledger."""

from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import SettingsError, StateError, StoreError
from alignup.align.host import Host
from alignup.align.policy_overrides import PolicyOverrides
from alignup.align.settings import Policy, Scope
from alignup.align.workload import QoS
from alignup.machines import synthetic
from alignup.run.cgroup import Cpuset
from alignup.run.local_allocator import LocalAllocator, build_host, build_pod, restrict_memory
from alignup.run.process import NodeMap
from alignup.run.request import RunRequest, build_environment, resolve_placement, run_name
from alignup.store.database import NAME

TWO = synthetic.parse("pack:2 numa:1(memory=16GiB) core:4 pu:1")
ONE = synthetic.parse("pack:1 numa:1(memory=1GiB) core:1 pu:1")


def request(uid: str = "1", **amounts: str) -> RunRequest:
    return RunRequest(uid=uid, name="web", amounts=amounts)


def allocator_of(host: Host, permitted: CpuSet, directory: Path = Path("nowhere")) -> LocalAllocator:
    return LocalAllocator(directory, host, permitted_cpus=permitted, explain=lambda _, __: None)


def test_one_cpu_and_some_memory_are_reserved():
    host = build_host(TWO, PolicyOverrides())

    assert host.ledger.cpus.reserved == 1
    assert host.settings.topology.policy is Policy.BEST_EFFORT
    assert host.settings.reservation["memory"].value() == 1 << 30


def test_cpus_and_memory_that_are_not_permitted_are_never_allocated():
    permitted = Cpuset(bits.parse("2-5"), bits.parse("0"))
    machine = restrict_memory(TWO, permitted)

    host = build_host(machine, PolicyOverrides(), permitted_cpus=permitted.cpus)
    allocator = allocator_of(host, permitted.cpus)
    placement = allocator.placement(host.decide(build_pod(request(cpu="3", memory="1Gi"))))

    assert host.ledger.cpus.reserved == bits.parse("0-2,6-7")
    assert (placement.cpus, placement.memory) == (bits.parse("3-5"), bits.parse("0"))
    assert allocator.shared() == permitted.cpus


def test_a_machine_with_one_cpu_has_no_exclusive_cpus():
    host = build_host(ONE, PolicyOverrides())

    assert host.decide(build_pod(request())).admitted
    assert not host.decide(build_pod(request(cpu="1"))).admitted


def test_a_machine_of_unknown_memory_is_supported():
    unknown = replace(TWO, nodes=tuple(replace(node, memory=None) for node in TWO.nodes))

    assert build_host(unknown, PolicyOverrides()).decide(build_pod(request(cpu="2", memory="1Gi"))).admitted


def test_policy_scope_and_options_override_the_defaults():
    host = build_host(
        TWO,
        PolicyOverrides(
            policy="restricted", scope="pod", options={"align-by-socket": "true", "max-allowable-numa-nodes": "9"}
        ),
    )

    settings = host.settings
    assert (settings.topology.policy, settings.topology.scope) == (Policy.RESTRICTED, Scope.POD)
    assert settings.topology.options.max_nodes == 9
    assert settings.cpus.options == {"align-by-socket": "true"}


@pytest.mark.parametrize("options", [{"nonsense": "true"}, {"full-pcpus-only": "maybe"}])
def test_invalid_options_are_errors(options):
    with pytest.raises(SettingsError):
        build_host(TWO, PolicyOverrides(options=options))


@pytest.mark.parametrize(
    ("cpu", "qos"),
    [pytest.param("2", QoS.GUARANTEED, id="whole CPUs"), pytest.param("500m", QoS.BURSTABLE, id="a fraction")],
)
def test_whole_cpus_are_exclusive_without_a_memory_request(cpu, qos):
    assert build_pod(request(cpu=cpu)).qos is qos


def test_a_ledger_drops_finished_runs_and_keeps_active_ones(tmp_path):
    idle = build_host(TWO, PolicyOverrides())
    first = allocator_of(idle, 0, tmp_path)
    for uid in ("a", "b"):
        assert first.admit(request(uid, cpu="3"))
    first.save()

    later = allocator_of(idle, 0, tmp_path)
    later.load(active=("b", "c"))

    assert list(later.host.ledger.pods) == ["b"]
    assert later.changed
    assert later.host.ledger.cpus.shared == TWO.kubelet_view().all_cpus & ~bits.parse("4-6")


def test_a_ledger_from_a_backup_is_an_error_with_advice(tmp_path):
    """What runs that were started later hold would be given to others."""
    allocator = allocator_of(build_host(TWO, PolicyOverrides()), TWO.kubelet_view().all_cpus, tmp_path)
    for uid in "ab":
        allocator.load(active=["a"])
        allocator.admit(request(uid, cpu="2"))
        allocator.save()
        if uid == "a":
            backup = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(backup)

    with pytest.raises(
        StoreError, match=r"it lacks 1 acknowledged change .*remove alignup\.sqlite-acknowledged to go on"
    ):
        allocator.load(active=["a", "b"])

    (tmp_path / f"{NAME}-acknowledged").unlink()
    allocator.load(active=["a", "b"])
    assert list(allocator.host.ledger.pods) == ["a"]


def test_a_ledger_with_other_settings_is_an_error_with_advice(tmp_path):
    first = allocator_of(build_host(TWO, PolicyOverrides()), 0, tmp_path)
    first.admit(request("a", cpu="3"))
    first.save()

    other = allocator_of(build_host(TWO, PolicyOverrides(), permitted_cpus=bits.parse("5-7")), 0, tmp_path)
    with pytest.raises(StateError, match="use the configuration and options of these runs"):
        other.load(active=("a",))


def test_the_environment_describes_the_placement():
    idle = build_host(TWO, PolicyOverrides())
    allocator = allocator_of(idle, TWO.kubelet_view().all_cpus)
    placement = allocator.placement(idle.decide(build_pod(request(cpu="4"))))

    assert (placement.cpus, placement.exclusive, placement.nodes, placement.memory) == (bits.parse("4-7"), True, 2, 2)
    assert build_environment(request(), placement) == {
        "ALIGNUP_RUN": "1",
        "ALIGNUP_NAME": "web",
        "ALIGNUP_CPUS": "4-7",
        "ALIGNUP_NUMA_NODES": "1",
        "ALIGNUP_MEMORY_NODES": "1",
    }


def test_gpus_are_passed_to_cuda():
    document = {"given": {"device": {"nvidia.com/gpu": "GPU-1,GPU-2"}}, "hint": {"nodes": None}}
    placement = resolve_placement(document, shared=3, devices={}, node_map=NodeMap({0: 3}, 1), strict=False)

    variables = build_environment(request(), placement)

    assert variables["CUDA_VISIBLE_DEVICES"] == variables["ALIGNUP_DEVICES_NVIDIA_COM_GPU"] == "GPU-1,GPU-2"


@pytest.mark.parametrize(
    ("given_name", "command", "name"),
    [
        pytest.param("web", "x", "web", id="given name"),
        pytest.param(None, "/usr/bin/Train_it.py", "train-it-py-1", id="from the command"),
        pytest.param(None, "/???", "run-1", id="a command without letters"),
    ],
)
def test_runs_have_names(given_name, command, name):
    assert run_name(given_name, command, "1") == name
