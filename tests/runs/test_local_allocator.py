"""The host a user has without an agent, and what runs ask of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align import bits, synthetic
from alignup.align.bits import CpuSet
from alignup.align.errors import ParseError, SettingsError, StateError
from alignup.align.host import Host
from alignup.align.settings import Policy, Scope
from alignup.align.workload import QoS
from alignup.enforce.cgroup import Cpuset
from alignup.enforce.numa_nodes import NodeMap
from alignup.runs import local_allocator, request
from alignup.runs.local_allocator import LocalAllocator, PolicyOverrides, RunLedger
from alignup.runs.request import RunAllocation, RunRequest

TWO = synthetic.parse("pack:2 numa:1(memory=16GiB) core:4 pu:1")
ONE = synthetic.parse("pack:1 numa:1(memory=1GiB) core:1 pu:1")


def asked(uid: str = "1", **amounts: str) -> RunRequest:
    return RunRequest(uid=uid, name="web", amounts=amounts)


def office_of(host: Host, permitted: CpuSet) -> LocalAllocator:
    """Who decides, and writes nothing."""
    return LocalAllocator(Path("nowhere"), host, permitted=permitted, explain=lambda _, __: None)


def test_one_cpu_and_a_little_memory_are_kept_back():
    host = local_allocator.build_host(TWO, PolicyOverrides())

    book = host.ledger.books["cpu"]
    assert book.reserved == 1
    assert host.settings.topology.policy is Policy.BEST_EFFORT
    assert host.settings.reservation["memory"].value() == 1 << 30


def test_what_is_not_permitted_is_nobodys():
    permitted = Cpuset(bits.parse("2-5"), bits.parse("0"))
    machine = local_allocator.restrict_memory(TWO, permitted)

    host = local_allocator.build_host(machine, PolicyOverrides(), permitted=permitted.cpus)
    office = office_of(host, permitted.cpus)
    got = request.resolve_placement(office.offer(host.decide(local_allocator.build_pod(asked(cpu="3", memory="1Gi")))))

    assert host.ledger.books["cpu"].reserved == bits.parse("0-2,6-7")
    assert (got.cpus, got.memory) == (bits.parse("3-5"), bits.parse("0"))
    assert office.shared() == permitted.cpus


def test_a_machine_with_one_cpu_has_none_to_give_away():
    host = local_allocator.build_host(ONE, PolicyOverrides())

    assert host.decide(local_allocator.build_pod(asked())).admitted
    assert not host.decide(local_allocator.build_pod(asked(cpu="1"))).admitted


def test_a_machine_that_does_not_tell_its_memory_is_no_hindrance():
    unknown = replace(TWO, nodes=tuple(replace(node, memory=None) for node in TWO.nodes))

    assert (
        local_allocator.build_host(unknown, PolicyOverrides())
        .decide(local_allocator.build_pod(asked(cpu="2", memory="1Gi")))
        .admitted
    )


def test_rules_are_said_by_name():
    host = local_allocator.build_host(
        TWO,
        PolicyOverrides(
            policy="restricted", scope="pod", options=("align-by-socket=true", "max-allowable-numa-nodes=9")
        ),
    )

    settings = host.settings
    assert (settings.topology.policy, settings.topology.scope) == (Policy.RESTRICTED, Scope.POD)
    assert settings.topology.options.max_nodes == 9
    assert settings.cpus.options == {"align-by-socket": "true"}


@pytest.mark.parametrize("option", ["nonsense=true", "prefer-closest-numa-nodes", "full-pcpus-only=maybe"])
def test_options_that_are_none_are_refused(option):
    with pytest.raises(SettingsError):
        local_allocator.build_host(TWO, PolicyOverrides(options=(option,)))


@pytest.mark.parametrize(
    ("cpu", "qos"),
    [pytest.param("2", QoS.GUARANTEED, id="whole CPUs are its own"), pytest.param("500m", QoS.BURSTABLE, id="a part")],
)
def test_cpus_are_its_own_without_a_word_about_memory(cpu, qos):
    assert local_allocator.build_pod(asked(cpu=cpu)).qos is qos


def test_a_ledger_forgets_who_is_gone_and_keeps_who_is_not(tmp_path):
    idle = local_allocator.build_host(TWO, PolicyOverrides())
    book = RunLedger(tmp_path, idle, alive=())
    for uid in ("a", "b"):
        assert book.admit(local_allocator.build_pod(asked(uid, cpu="3"))).admitted
    book.save()

    later = RunLedger(tmp_path, idle, alive=("b", "c"))

    assert list(later.host.ledger.pods) == ["b"]
    assert later.changed
    assert later.host.ledger.books["cpu"].shared == TWO.kubelet_view().all_cpus & ~bits.parse("4-6")


def test_a_ledger_of_other_settings_says_what_is_in_the_way(tmp_path):
    book = RunLedger(tmp_path, local_allocator.build_host(TWO, PolicyOverrides()), alive=())
    book.admit(local_allocator.build_pod(asked("a", cpu="3")))
    book.save()

    with pytest.raises(StateError, match="say --config and --option as for them"):
        RunLedger(
            tmp_path, local_allocator.build_host(TWO, PolicyOverrides(), permitted=bits.parse("5-7")), alive=("a",)
        )


def test_what_is_given_is_told():
    idle = local_allocator.build_host(TWO, PolicyOverrides())
    office = office_of(idle, TWO.kubelet_view().all_cpus)
    got = request.resolve_placement(office.offer(idle.decide(local_allocator.build_pod(asked(cpu="4")))))

    assert (got.cpus, got.exclusive, got.nodes, got.memory) == (bits.parse("4-7"), True, 2, 2)
    assert request.build_environment(asked(), got) == {
        "ALIGNUP_RUN": "1",
        "ALIGNUP_NAME": "web",
        "ALIGNUP_CPUS": "4-7",
        "ALIGNUP_NUMA_NODES": "1",
        "ALIGNUP_MEMORY_NODES": "1",
    }


def test_gpus_are_told_to_cuda():
    placement = {"given": {"device": {"nvidia.com/gpu": "GPU-1,GPU-2"}}, "hint": {"nodes": None}}
    offer = RunAllocation(placement=placement, shared=3, devices={}, node_map=NodeMap({0: 3}, 1), strict=False)

    told = request.build_environment(asked(), request.resolve_placement(offer))

    assert told["CUDA_VISIBLE_DEVICES"] == told["ALIGNUP_DEVICES_NVIDIA_COM_GPU"] == "GPU-1,GPU-2"


@pytest.mark.parametrize(
    ("said", "command", "name"),
    [
        pytest.param("web", "x", "web", id="as somebody said"),
        pytest.param(None, "/usr/bin/Train_it.py", "train-it-py-1", id="after the command"),
        pytest.param(None, "/???", "run-1", id="of a command without letters"),
    ],
)
def test_runs_have_names(said, command, name):
    assert request.run_name(said, command, "1") == name


def test_a_resource_is_asked_for_once():
    found = request.parse_amounts(cpus="2", memory=None, hugepages=["2Mi=64Mi"], devices=["example.com/gpu=1"])

    assert found == {"cpu": "2", "hugepages-2Mi": "64Mi", "example.com/gpu": "1"}
    with pytest.raises(ParseError, match="twice"):
        request.parse_amounts(cpus=None, memory=None, hugepages=["2Mi=64Mi", "2Mi=2Mi"], devices=[])
