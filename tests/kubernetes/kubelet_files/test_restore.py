"""A ledger restored from a kubelet's state files: its pods, their holdings, and what is unknown."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import Problem, StateError
from alignup.align.fit import UsedResources
from alignup.align.host import Host
from alignup.align.settings import FeatureGates, Scope
from alignup.align.workload import Container, Pod, QoS, Resources
from alignup.kubernetes.kubelet_files.ledger import Gap, GapKind, RestoredLedger, export_ledger, restore_ledger
from alignup.kubernetes.kubelet_files.state_files import DeviceEntry, DeviceState, KubeletFiles
from tests.align.hosts import GIB, GPU, NIC, host, pod
from tests.soundness import check_sound
from tests.strategies_pods import amounts, container, guaranteed

#: Pods with pod-level resources are allocated as a whole.
IN_ONE_PIECE: dict[str, Any] = {"scope": Scope.POD, "gates": FeatureGates({"PodLevelResourceManagers": True})}


def busy(**settings: Any) -> tuple[Host, KubeletFiles]:
    """A host with two pods, one of them with devices, and its state files."""
    one = host(**settings)
    for wanted in (pod("a", gpu="1"), pod("b", cpu="3", memory="2Gi")):
        assert one.admit(wanted).admitted
    return one, export_ledger(one)


def texts(restored: RestoredLedger) -> tuple[str, ...]:
    return tuple(gap.text for gap in restored.gaps)


def test_listed_pods_count_with_all_their_requests():
    one, files = busy()
    others = Pod(name="shared", uid="c", containers=(container("app", {"cpu": "1500m", "memory": "1Gi"}),))

    restored = restore_ledger(host(), files, [pod("a", gpu="1"), pod("b", cpu="3", memory="2Gi"), others])

    assert (texts(restored), restored.unknown) == (
        (f"the Allocate response of the plugin of {GPU} is unknown",),
        (),
    )
    assert list(restored.ledger.pods) == ["a", "b", "c"]
    assert restored.ledger.used.milli_cpu == one.ledger.used.milli_cpu + 1500
    assert restored.ledger.used.memory == one.ledger.used.memory + GIB
    assert restored.ledger.memory.nodes == one.ledger.memory.nodes


def test_unlisted_pods_are_replaced_by_stand_ins():
    one, files = busy()

    restored = restore_ledger(host(), files)

    resident = restored.ledger.pods["a"]
    assert restored.unknown == ("a", "b")
    assert restored.gaps[-1] == Gap(
        "the state files do not contain the names and shared CPU use of 2 pods", GapKind.PODS
    )
    assert (resident.pod.name, resident.pod.namespace, resident.pod.qos) == ("a", "", QoS.GUARANTEED)
    assert resident.pod.containers == (
        Container("app", Resources(amounts(asked := {"cpu": "2", "memory": "1Gi", GPU: "1"}), amounts(asked))),
    )
    assert restored.ledger.used == one.ledger.used


def test_a_stand_in_with_devices_only_has_no_qos_class():
    one = host()
    plain = Pod(name="a", uid="a", containers=(container("app", {}, {GPU: "1"}),))
    one.admit(plain)

    restored = restore_ledger(host(), export_ledger(one))

    assert restored.ledger.pods["a"].pod.qos is QoS.BEST_EFFORT
    assert restored.ledger.used == UsedResources(pods=1, scalars={GPU: 1})


def test_resources_reused_after_init_containers_count_once():
    wanted = Pod(
        name="a",
        uid="a",
        init=(guaranteed("init", {"cpu": "2", "memory": "1Gi", GPU: "1"}),),
        containers=(guaranteed("app", {"cpu": "2", "memory": "1Gi", GPU: "1"}),),
    )
    one = host()
    one.admit(wanted)

    restored = restore_ledger(host(), export_ledger(one))

    assert restored.ledger.used == UsedResources(milli_cpu=2000, memory=GIB, pods=1, scalars={GPU: 1})


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
def test_a_released_pod_releases_everything(named):
    _, files = busy()
    restored = restore_ledger(host(), files, [pod("a", gpu="1"), pod("b", cpu="3", memory="2Gi")] if named else [])
    again = Host(host().machine, host().settings, ledger=restored.ledger)

    again.release("a")
    again.release("b")

    assert again.ledger == host().ledger


def test_a_stand_in_for_a_pod_level_allocation_has_pod_level_resources():
    wanted = Pod(
        name="a",
        uid="a",
        containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}), container("side")),
        resources=Resources(amounts({"cpu": "3", "memory": "2Gi"}), amounts({"cpu": "3", "memory": "2Gi"})),
    )
    one = host(**IN_ONE_PIECE)
    assert one.admit(wanted).admitted

    restored = restore_ledger(host(**IN_ONE_PIECE), export_ledger(one))

    assert restored.ledger.pods["a"].pod.resources == wanted.resources
    assert restored.ledger.used == one.ledger.used
    again = Host(one.machine, one.settings, ledger=restored.ledger)
    again.release("a")
    assert again.ledger == host(**IN_ONE_PIECE).ledger


def test_a_missing_file_counts_as_idle():
    one, files = busy()

    restored = restore_ledger(host(), replace(files, cpu=None, devices=None, gaps=("no CPUs", "no devices")))

    ledger = restored.ledger
    assert (ledger.cpus, ledger.devices) == (host().ledger.cpus, host().ledger.devices)
    assert ledger.memory.held == one.ledger.memory.held
    assert texts(restored)[:2] == ("no CPUs", "no devices")


def test_the_host_does_not_change():
    _, files = busy()
    one = host()
    before = one.ledger

    restore_ledger(one, files)

    assert one.ledger is before


def spoiled(what: str) -> KubeletFiles:
    _, files = busy()
    assert files.cpu
    assert files.memory
    assert files.devices
    match what:
        case "a broken file":
            return replace(files, cpu=None, problems=(Problem("/k/cpu_manager_state", "it is broken"),))
        case "another CPU policy":
            return replace(files, cpu=replace(files.cpu, policy="none"))
        case "another memory policy":
            return replace(files, memory=replace(files.memory, policy="None"))
        case "a CPU more":
            return replace(files, cpu=replace(files.cpu, default=files.cpu.default | 1 << 99))
        case "a CPU of two pods":
            entries = {**files.cpu.entries, "z": files.cpu.entries["a"]}
            return replace(files, cpu=replace(files.cpu, entries=entries))
        case "memory that does not add up":
            return replace(files, memory=replace(files.memory, entries={}))
        case _:
            again = replace(files.devices.entries[0], uid="z")
            return replace(files, devices=replace(files.devices, entries=(*files.devices.entries, again)))


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("a broken file", "it is broken"),
        ("another CPU policy", 'configured policy "static" differs from state checkpoint policy "none"'),
        (
            "another memory policy",
            '[memorymanager] configured policy "Static" differs from state checkpoint policy "None"',
        ),
        ("a CPU more", 'current set of available CPUs "0-7" doesn\'t match with CPUs in state "0-7,99"'),
        (
            "a CPU of two pods",
            ("pods a and z both hold CPUs 1-2; delete one of them, or drain the node and delete its cpu_manager_state"),
        ),
        (
            "memory that does not add up",
            "[memorymanager] the expected machine state is different from the real one",
        ),
        (
            "a device of two pods",
            (
                f"pod z container app: {GPU} gpu-0: held by another pod; delete one of the two pods, "
                "or drain the node and delete its kubelet_internal_checkpoint"
            ),
        ),
    ],
)
def test_files_that_contradict_themselves_or_stop_a_kubelet_are_rejected(what, error):
    with pytest.raises(StateError) as caught:
        restore_ledger(host(), spoiled(what))

    assert str(caught.value) == error


def test_files_of_disabled_managers_are_ignored():
    one = host(cpus=replace(host().settings.cpus, policy="none"), memory_policy="None", reserved_memory=())

    restored = restore_ledger(one, export_ledger(one))

    assert restored.ledger == one.ledger
    assert restored.gaps == ()


def test_pod_level_holdings_without_containers_are_unavailable():
    """A kubelet was killed between two writes; it would never allocate them again."""
    one = host(**IN_ONE_PIECE)
    own = Resources(amounts({"cpu": "3", "memory": "2Gi"}), amounts({"cpu": "3", "memory": "2Gi"}))
    one.admit(Pod(name="a", uid="a", containers=(container("app"),), resources=own))
    files = export_ledger(one)
    assert files.cpu
    assert files.memory
    assert files.cpu.pod_entries

    restored = restore_ledger(
        host(**IN_ONE_PIECE),
        replace(files, cpu=replace(files.cpu, entries={}), memory=replace(files.memory, entries={})),
    )

    assert restored.unknown == ()
    assert [gap.partition(",")[0] for gap in texts(restored)] == [
        f"pod a holds CPUs {bits.show(files.cpu.pod_entries['a'])} as a whole",
        "pod a holds memory as a whole",
    ]
    assert restored.ledger.cpus.available == one.ledger.cpus.available
    assert restored.ledger.memory.nodes == one.ledger.memory.nodes


def test_a_pod_without_a_uid_is_ignored():
    restored = restore_ledger(host(), export_ledger(host()), [replace(pod("a"), uid="")])

    assert restored.ledger == host().ledger
    assert texts(restored) == ("pod default/a is ignored: without a uid it cannot be found in the state files",)


def test_unknown_devices_are_added_on_their_nodes():
    entry = DeviceEntry(uid="u", container="c", resource="example.com/fpga", devices={1: ("f0",)})
    state = DeviceState(entries=(entry,), registered={"example.com/fpga": ("f0", "f1"), GPU: None, NIC: ("nic-0",)})

    restored = restore_ledger(host(), KubeletFiles(devices=state))

    ledger = restored.ledger.devices
    fpgas = ledger.inventories["example.com/fpga"]
    assert [(device.id, device.nodes) for device in fpgas.devices] == [("f0", 2), ("f1", None)]
    assert ledger.allocatable() == {"example.com/fpga": 2, GPU: 0, NIC: 1}
    assert ledger.holds("u", "c") == {"example.com/fpga": ("f0",)}
    assert any(gap.kind is GapKind.DEVICE_TOPOLOGY and gap.resource == "example.com/fpga" for gap in restored.gaps)


ids = st.lists(st.sampled_from(["gpu-0", "gpu-1", "x", "y", "z"]), max_size=3, unique=True).map(tuple)
device_states = st.builds(
    DeviceState,
    entries=st.lists(
        st.builds(
            DeviceEntry,
            uid=st.sampled_from("abc"),
            container=st.sampled_from(["app", "init"]),
            resource=st.sampled_from([GPU, "example.com/fpga"]),
            devices=st.dictionaries(st.sampled_from([-7, -1, 0, 1, 9, 1 << 40]), ids, max_size=2),
        ),
        max_size=3,
    ).map(tuple),
    registered=st.dictionaries(st.sampled_from([GPU, "example.com/fpga"]), st.none() | ids),
)


@given(device_states)
def test_any_device_file_is_rejected_or_gives_a_consistent_host(state):
    try:
        restored = restore_ledger(host(), KubeletFiles(devices=state))
    except StateError as error:
        assert "held by another pod" in str(error)
        return
    one = Host(host().machine, host().settings, ledger=restored.ledger)

    check_sound(one, "restored")
    healthy = {resource: set(ids or ()) for resource, ids in state.registered.items()}
    ledger = one.ledger.devices
    for resource, listed in healthy.items():
        assert set(ledger.inventories[resource].names(ledger.inventories[resource].healthy)) == listed
    for uid in restored.unknown:
        one.release(uid)
    ledger = one.ledger.devices
    assert (ledger.held, ledger.in_use, one.ledger.used) == ({}, {}, UsedResources())
    assert ledger.free == {resource: inventory.healthy for resource, inventory in ledger.inventories.items()}


def test_only_held_devices_remain_without_the_plugin():
    entry = DeviceEntry(uid="u", container="c", resource="example.com/fpga", devices={1: ("f0",)})

    restored = restore_ledger(host(), KubeletFiles(devices=DeviceState(entries=(entry,))))
    again = Host(host().machine, host().settings, ledger=restored.ledger)

    assert "example.com/fpga" in again.ledger.devices.handled
    again.release("u")
    assert "example.com/fpga" not in again.ledger.devices.handled


def test_a_running_kubelet_counts_with_files_that_it_would_not_start_with():
    one, files = busy()
    assert files.cpu is not None
    assert files.memory is not None
    lost = replace(files.cpu, default=files.cpu.default & ~bits.of([7]))
    fewer = replace(files.memory, entries={"a": files.memory.entries["a"]})

    with pytest.raises(StateError, match="doesn't match with CPUs in state"):
        restore_ledger(host(), replace(files, cpu=lost))
    with pytest.raises(StateError, match="different from the real one"):
        restore_ledger(host(), replace(files, memory=fewer))
    restored = restore_ledger(host(), replace(files, cpu=lost, memory=fewer), running=True)

    assert restored.ledger.cpus.lost == bits.of([7])
    assert restored.ledger.cpus.held == one.ledger.cpus.held
    assert restored.ledger.memory.nodes == one.ledger.memory.nodes
    assert [gap.partition(":")[0] for gap in texts(restored)[-3:-1]] == ["cpu_manager_state", "memory_manager_state"]


@pytest.mark.parametrize("shape", ["pack:2 numa:1 core:3 pu:1", "pack:4 numa:1 core:2 pu:1"])
def test_files_of_another_machine_are_an_error_for_a_running_kubelet_too(shape):
    with pytest.raises(StateError):
        restore_ledger(host(shape=shape), busy()[1], running=True)


def test_a_running_kubelet_keeps_pod_level_memory():
    one = host(**IN_ONE_PIECE)
    wanted = Resources(amounts({"cpu": "3", "memory": "2Gi"}), amounts({"cpu": "3", "memory": "2Gi"}))
    assert one.admit(
        Pod(name="a", uid="a", containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}),), resources=wanted)
    ).admitted
    files = export_ledger(one)
    assert files.memory is not None
    nodes = {id_: node._replace(assignments=7) for id_, node in files.memory.machine_state.items()}

    restored = restore_ledger(
        host(**IN_ONE_PIECE), replace(files, memory=replace(files.memory, machine_state=nodes)), running=True
    )

    assert restored.ledger.memory.pod_held == one.ledger.memory.pod_held
