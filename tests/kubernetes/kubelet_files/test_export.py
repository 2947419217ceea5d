"""A ledger exported as a kubelet's files and restored is the same ledger."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from alignup.align.errors import StateError
from alignup.align.fit import UsedResources
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.align.workload.names import is_hugepages
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.ledger import export_ledger, restore_ledger
from alignup.kubernetes.kubelet_files.state_files import KubeletFiles, read_state_files, write_state_files
from tests.align.hosts import GPU, admit, arrivals, host, hosts, pod
from tests.effort import examples
from tests.strategies_pods import guaranteed


def through_files(one: Host) -> KubeletFiles:
    """Return the files as a kubelet with the same settings reads them."""
    states, gates = export_ledger(one), one.settings.gates
    assert states.cpu
    assert states.memory
    assert states.devices
    memory_policy = one.settings.memory_policy
    return KubeletFiles(
        cpu=state_files.parse_cpu_state(
            state_files.dump_cpu_state(states.cpu, gates=gates),
            configured_policy=one.settings.cpus.policy,
            gates=gates,
            path="c",
        ),
        memory=state_files.parse_memory_state(
            state_files.dump_memory_state(states.memory, gates=gates),
            configured_policy=memory_policy,
            gates=gates,
            path="m",
        ),
        devices=state_files.parse_device_state(state_files.dump_device_state(states.devices), path="d"),
    )


def new_pods(one: Host, uid: str) -> st.SearchStrategy[Pod]:
    """Pods that request only huge page sizes of the machine, and zero pages only of sizes that every node has.

    Requesting zero pages allocates an empty block on some node, and a kubelet cannot start with one on a node without
    that size.
    """
    sizes = [{pages.resource for pages in node.hugepages} for node in one.machine.nodes]
    somewhere, everywhere = set().union(*sizes), set.intersection(*sizes)

    def known(wanted: Pod) -> bool:
        resources = (wanted.resources, *(container.resources for container in wanted.all_containers))
        asked = (each for one in resources for each in one.requests.items())
        return all(name in (everywhere if much.is_zero else somewhere) for name, much in asked if is_hugepages(name))

    return arrivals(uid).filter(known)


def holdings(one: Host) -> Any:
    """Return what matters to the next pod, except what the last one left to reuse."""
    cpus, memory, devices = one.ledger.cpus, one.ledger.memory, one.ledger.devices
    return (
        (cpus.shared, cpus.held, cpus.pod_held, cpus.free),
        (memory.nodes, memory.held, memory.pod_held),
        (devices.inventories, devices.held, devices.in_use, devices.free),
    )


@given(hosts(), st.data())
def test_a_host_continues_from_its_files(one, data):
    """All holdings are restored, and the decision about the next pod is the same.

    If the pods are not listed, only their holdings count, so the fit check may admit more.
    """
    for number in range(data.draw(st.integers(1, 5))):
        pod = data.draw(new_pods(one, f"u{number}"))
        if admit(one, pod).admitted and data.draw(st.booleans()):
            one.start_container(pod.uid, data.draw(st.sampled_from(pod.all_containers)).name)
    for uid in data.draw(st.lists(st.sampled_from(sorted(one.ledger.pods)), max_size=2)) if one.ledger.pods else ():
        one.release(uid)
    running = [resident.pod for resident in one.ledger.pods.values()]
    fresh = Host(one.machine, one.settings)

    restored = restore_ledger(fresh, through_files(one), running)
    again = Host(one.machine, one.settings, ledger=restored.ledger)

    event(f"{len(running)} pods, {len(again.ledger.cpus.held)} with exclusive CPUs")
    assert restored.gaps == ()
    assert holdings(again) == holdings(one)
    assert again.ledger.used == one.ledger.used
    following = data.draw(arrivals("next"))
    expected, decided = admit(one, following), admit(again, following)
    assert (decided.outcome, decided.rejection, decided.placements) == (
        expected.outcome,
        expected.rejection,
        expected.placements,
    )
    check_idle_once_all_are_released(again, fresh)


@settings(max_examples=examples(33))
@given(hosts(), st.data())
def test_unlisted_pods_release_everything_too(one, data):
    for number in range(3):
        admit(one, data.draw(new_pods(one, f"u{number}")))
    fresh = Host(one.machine, one.settings)

    restored = restore_ledger(fresh, through_files(one))
    again = Host(one.machine, one.settings, ledger=restored.ledger)

    assert holdings(again) == holdings(one)
    assert set(restored.unknown) <= set(one.ledger.pods)
    for uid in restored.unknown:
        assert again.ledger.pods[uid].usage.milli_cpu == 1000 * one.ledger.cpus.owned(uid).bit_count()
    check_idle_once_all_are_released(again, fresh)


def check_idle_once_all_are_released(one: Host, idle: Host) -> None:
    for uid in tuple(one.ledger.pods):
        one.release(uid)
    assert holdings(one) == holdings(idle)
    assert one.ledger.used == UsedResources()


@settings(max_examples=examples(33))
@given(hosts(), st.data())
def test_the_same_ledger_gives_the_same_files(one, data):
    """Also after it was restored from files."""
    for number in range(3):
        admit(one, data.draw(new_pods(one, f"u{number}")))

    states = through_files(one)

    assert replace(export_ledger(one), gaps=()) == states
    restored = restore_ledger(Host(one.machine, one.settings), states)
    assert replace(export_ledger(Host(one.machine, one.settings, ledger=restored.ledger)), gaps=()) == states


def test_a_missing_allocate_response_is_a_gap():
    one = host()
    one.admit(pod("a", gpu="1"))
    one.admit(pod("b", gpu="1"))

    some = export_ledger(one, responses={("a", "app", GPU): b"\x01"})
    all_ = export_ledger(one, responses={("a", "app", GPU): b"\x01", ("b", "app", GPU): b"\x02"})

    assert some.devices
    assert [entry.response for entry in some.devices.entries] == [b"\x01", b""]
    assert some.gaps == (f"the Allocate response of the plugin of {GPU} is unknown",)
    assert all_.gaps == ()


def test_devices_are_listed_under_their_nodes_and_missing_ones_under_none():
    one = host(Policy.BEST_EFFORT)
    ill = Device(GPU, "ill", nodes=1, healthy=False)
    one.update_devices(GPU, [Device(GPU, "both", nodes=0b11), Device(GPU, "nowhere", nodes=None), ill])
    one.admit(pod("a", gpu="2"))

    before = export_ledger(one).devices
    one.update_devices(GPU, [])
    after = export_ledger(one).devices

    assert before
    assert after
    assert before.entries[0].devices == {0: ("both",), 1: ("both",), -1: ("nowhere",)}
    assert before.registered[GPU] == ("both", "nowhere")
    assert after.entries[0].devices == {-1: ("both", "nowhere")}
    assert after.registered[GPU] == ()


def test_a_state_without_shared_cpus_is_rejected_by_the_kubelet_only():
    """The kubelet writes a file without shared CPUs and then rejects it; we read it."""
    strict = replace(
        host().settings.cpus, options={"strict-cpu-reservation": "true"}, reservation=host().settings.cpus.reservation
    )
    one = host(cpus=strict, fit_check=False)
    one.admit(pod("a", cpu="3"))
    one.admit(pod("b", cpu="4"))
    states = export_ledger(one)

    assert states.cpu
    assert states.cpu.default == 0
    assert restore_ledger(one, states).ledger.cpus.shared == 0
    with pytest.raises(StateError, match="default cpuset cannot be empty"):
        restore_ledger(Host(one.machine, replace(one.settings, kubelet_faults=True)), states)


def test_empty_blocks_of_missing_types_are_not_written():
    """The kubelet writes empty blocks of a missing huge page size, and then cannot start with them."""
    one = host()
    asked = {"cpu": "2", "memory": "1Gi", "hugepages-1Gi": "0"}
    assert one.admit(Pod(name="a", uid="a", containers=(guaranteed("app", asked),))).admitted
    ledger = one.ledger.memory
    assert [block.type for block in ledger.blocks("a", "app") or ()] == ["hugepages-1Gi", "memory"]

    states = export_ledger(one)
    restored = restore_ledger(host(), states)

    assert states.memory
    assert [block.type for block in states.memory.entries["a"]["app"]] == ["memory"]
    assert restored.ledger.memory.nodes[0].tables == ledger.nodes[0].tables
    written_as_it_is = replace(states.memory, machine_state=ledger.nodes, entries=ledger.held)
    with pytest.raises(StateError, match="uses memory resource that does not exist"):
        restore_ledger(host(), replace(states, memory=written_as_it_is))


def test_files_in_a_directory_restore_the_host(tmp_path):
    one = host()
    one.admit(pod("a", gpu="1"))

    write_state_files(tmp_path, export_ledger(one), gates=one.settings.gates)
    files = read_state_files(tmp_path, gates=one.settings.gates, cpu_policy="static", memory_policy="Static")
    restored = restore_ledger(host(), files, [pod("a", gpu="1")])

    assert (restored.gaps, restored.unknown) == ((), ())
    assert holdings(Host(one.machine, one.settings, ledger=restored.ledger)) == holdings(one)
