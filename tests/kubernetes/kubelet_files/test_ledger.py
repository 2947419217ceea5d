"""A ledger restored from a kubelet's state files and exported as such files: its pods, holdings, devices and gaps."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import Problem, StateError
from alignup.align.fit import UsedResources
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.align.workload import Container, Pod, QoS, Resources
from alignup.align.workload.names import is_hugepages
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.ledger import (
    Gap,
    GapKind,
    RestoredLedger,
    export_ledger,
    restore_devices,
    restore_ledger,
)
from alignup.kubernetes.kubelet_files.state_files import (
    DeviceEntry,
    DeviceState,
    KubeletFiles,
    read_state_files,
    write_state_files,
)
from tests.align.hosts import GIB, GPU, NIC, admit, arrivals, host, hosts, pod
from tests.effort import examples
from tests.soundness import check_sound
from tests.strategies_pods import amounts, container, guaranteed

#: Pods with pod-level resources are allocated as a whole.
IN_ONE_PIECE: dict[str, Any] = {"scope": Scope.POD, "gates": FeatureGates({"PodLevelResourceManagers": True})}


def busy(**settings: Any) -> tuple[Host, KubeletFiles]:
    """A host with two pods, one of them with devices, and its state files."""
    original = host(**settings)
    for wanted in (pod("a", gpu="1"), pod("b", cpu="3", memory="2Gi")):
        assert original.admit(wanted).admitted
    return original, export_ledger(original)


def texts(restored: RestoredLedger) -> tuple[str, ...]:
    return tuple(gap.text for gap in restored.gaps)


def test_listed_pods_count_with_all_their_requests():
    original, files = busy()
    others = Pod(name="shared", uid="c", containers=(container("app", {"cpu": "1500m", "memory": "1Gi"}),))

    restored = restore_ledger(host(), files, [pod("a", gpu="1"), pod("b", cpu="3", memory="2Gi"), others])

    assert (texts(restored), restored.unknown) == (
        (f"the Allocate response of the plugin of {GPU} is unknown",),
        (),
    )
    assert list(restored.ledger.pods) == ["a", "b", "c"]
    assert restored.ledger.used.milli_cpu == original.ledger.used.milli_cpu + 1500
    assert restored.ledger.used.memory == original.ledger.used.memory + GIB
    assert restored.ledger.memory.nodes == original.ledger.memory.nodes


def test_unlisted_pods_are_replaced_by_stand_ins():
    original, files = busy()

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
    assert restored.ledger.used == original.ledger.used


ASKED = {"cpu": "2", "memory": "1Gi", GPU: "1"}


@pytest.mark.parametrize(
    ("unlisted", "qos", "used"),
    [
        pytest.param(
            Pod(name="a", uid="a", containers=(container("app", {}, {GPU: "1"}),)),
            QoS.BEST_EFFORT,
            UsedResources(pods=1, scalars={GPU: 1}),
            id="devices alone give no class",
        ),
        pytest.param(
            Pod(name="a", uid="a", init=(guaranteed("init", ASKED),), containers=(guaranteed("app", ASKED),)),
            QoS.GUARANTEED,
            UsedResources(milli_cpu=2000, memory=GIB, pods=1, scalars={GPU: 1}),
            id="what is reused after an init container counts once",
        ),
    ],
)
def test_what_a_stand_in_counts_as(unlisted, qos, used):
    original = host()
    original.admit(unlisted)

    restored = restore_ledger(host(), export_ledger(original))

    assert restored.ledger.pods["a"].pod.qos is qos
    assert restored.ledger.used == used


def test_a_stand_in_for_a_pod_level_allocation_has_pod_level_resources():
    wanted = Pod(
        name="a",
        uid="a",
        containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}), container("side")),
        resources=Resources(amounts({"cpu": "3", "memory": "2Gi"}), amounts({"cpu": "3", "memory": "2Gi"})),
    )
    original = host(**IN_ONE_PIECE)
    assert original.admit(wanted).admitted

    restored = restore_ledger(host(**IN_ONE_PIECE), export_ledger(original))

    assert restored.ledger.pods["a"].pod.resources == wanted.resources
    assert restored.ledger.used == original.ledger.used
    again = Host(original.machine, original.settings, ledger=restored.ledger)
    again.release("a")
    assert again.ledger == host(**IN_ONE_PIECE).ledger


def test_a_missing_file_counts_as_idle():
    original, files = busy()

    restored = restore_ledger(host(), replace(files, cpu=None, devices=None, gaps=("no CPUs", "no devices")))

    ledger = restored.ledger
    assert (ledger.cpus, ledger.devices) == (host().ledger.cpus, host().ledger.devices)
    assert ledger.memory.held == original.ledger.memory.held
    assert texts(restored)[:2] == ("no CPUs", "no devices")


def test_the_host_does_not_change():
    _, files = busy()
    original = host()
    before = original.ledger

    restore_ledger(original, files)

    assert original.ledger is before


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        pytest.param(
            lambda files: replace(files, cpu=None, problems=(Problem("/k/cpu_manager_state", "it is broken"),)),
            "it is broken",
            id="a broken file",
        ),
        pytest.param(
            lambda files: replace(files, cpu=replace(files.cpu, policy="none")),
            'configured policy "static" differs from state checkpoint policy "none"',
            id="another CPU policy",
        ),
        pytest.param(
            lambda files: replace(files, memory=replace(files.memory, policy="None")),
            '[memorymanager] configured policy "Static" differs from state checkpoint policy "None"',
            id="another memory policy",
        ),
        pytest.param(
            lambda files: replace(files, cpu=replace(files.cpu, default=files.cpu.default | 1 << 99)),
            'current set of available CPUs "0-7" doesn\'t match with CPUs in state "0-7,99"',
            id="a CPU more",
        ),
        pytest.param(
            lambda files: replace(
                files, cpu=replace(files.cpu, entries={**files.cpu.entries, "z": files.cpu.entries["a"]})
            ),
            "pods a and z both hold CPUs 1-2; delete one of them, or drain the node and delete its cpu_manager_state",
            id="a CPU of two pods",
        ),
        pytest.param(
            lambda files: replace(files, memory=replace(files.memory, entries={})),
            "[memorymanager] the expected machine state is different from the real one",
            id="memory that does not add up",
        ),
        pytest.param(
            lambda files: replace(
                files,
                devices=replace(
                    files.devices, entries=(*files.devices.entries, replace(files.devices.entries[0], uid="z"))
                ),
            ),
            f"pod z container app: {GPU} gpu-0: held by another pod; delete one of the two pods, "
            "or drain the node and delete its kubelet_internal_checkpoint",
            id="a device of two pods",
        ),
    ],
)
def test_files_that_contradict_themselves_or_stop_a_kubelet_are_rejected(damage, error):
    _, files = busy()

    with pytest.raises(StateError) as caught:
        restore_ledger(host(), damage(files))

    assert str(caught.value) == error


def test_pod_level_holdings_without_containers_are_unavailable():
    """A kubelet was killed between two writes; it would never allocate them again."""
    original = host(**IN_ONE_PIECE)
    pod_resources = Resources(amounts({"cpu": "3", "memory": "2Gi"}), amounts({"cpu": "3", "memory": "2Gi"}))
    original.admit(Pod(name="a", uid="a", containers=(container("app"),), resources=pod_resources))
    files = export_ledger(original)
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
    assert restored.ledger.cpus.available == original.ledger.cpus.available
    assert restored.ledger.memory.nodes == original.ledger.memory.nodes


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
    original = Host(host().machine, host().settings, ledger=restored.ledger)

    check_sound(original, "restored")
    healthy = {resource: set(ids or ()) for resource, ids in state.registered.items()}
    ledger = original.ledger.devices
    for resource, listed in healthy.items():
        assert set(ledger.inventories[resource].names(ledger.inventories[resource].healthy)) == listed
    for uid in restored.unknown:
        original.release(uid)
    ledger = original.ledger.devices
    assert (ledger.held, ledger.in_use, original.ledger.used) == ({}, {}, UsedResources())
    assert ledger.free == {resource: inventory.healthy for resource, inventory in ledger.inventories.items()}


def test_only_held_devices_remain_without_the_plugin():
    entry = DeviceEntry(uid="u", container="c", resource="example.com/fpga", devices={1: ("f0",)})

    restored = restore_ledger(host(), KubeletFiles(devices=DeviceState(entries=(entry,))))
    again = Host(host().machine, host().settings, ledger=restored.ledger)

    assert "example.com/fpga" in again.ledger.devices.handled
    again.release("u")
    assert "example.com/fpga" not in again.ledger.devices.handled


def test_a_running_kubelet_counts_with_files_that_it_would_not_start_with():
    original, files = busy()
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
    assert restored.ledger.cpus.held == original.ledger.cpus.held
    assert restored.ledger.memory.nodes == original.ledger.memory.nodes
    assert [gap.partition(":")[0] for gap in texts(restored)[-3:-1]] == ["cpu_manager_state", "memory_manager_state"]


@pytest.mark.parametrize("shape", ["pack:2 numa:1 core:3 pu:1", "pack:4 numa:1 core:2 pu:1"])
def test_files_of_another_machine_are_an_error_for_a_running_kubelet_too(shape):
    with pytest.raises(StateError):
        restore_ledger(host(shape=shape), busy()[1], running=True)


def test_a_running_kubelet_keeps_pod_level_memory():
    original = host(**IN_ONE_PIECE)
    wanted = Resources(amounts({"cpu": "3", "memory": "2Gi"}), amounts({"cpu": "3", "memory": "2Gi"}))
    assert original.admit(
        Pod(name="a", uid="a", containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}),), resources=wanted)
    ).admitted
    files = export_ledger(original)
    assert files.memory is not None
    nodes = {id_: node._replace(assignments=7) for id_, node in files.memory.machine_state.items()}

    restored = restore_ledger(
        host(**IN_ONE_PIECE), replace(files, memory=replace(files.memory, machine_state=nodes)), running=True
    )

    assert restored.ledger.memory.pod_held == original.ledger.memory.pod_held


GPU = "example.com/gpu"
DECLARED = tuple(Device(GPU, f"{GPU}-{number}", nodes=1 << number // 2) for number in range(4))


def held(*ids: str, node: int = 0) -> DeviceEntry:
    return DeviceEntry(uid="u", container="c", resource=GPU, devices={node: ids})


@pytest.mark.parametrize(
    ("known", "entries", "registered", "devices", "gaps"),
    [
        pytest.param(
            (),
            (held("a", node=1),),
            ("a", "b", "c"),
            {"a": (2, True), "b": (None, True), "c": (None, True)},
            [f"the state files do not contain the topology of 2 free devices of {GPU}"],
            id="only the ids of free devices are known",
        ),
        pytest.param((), (held("a", node=-1),), ("a",), {"a": (None, True)}, [], id="a held device without topology"),
        pytest.param(
            (Device(GPU, "a", nodes=1), Device(GPU, "b", nodes=2, healthy=False)),
            (held("a"),),
            ("a",),
            {"a": (1, True), "b": (2, False)},
            [],
            id="matched by id",
        ),
        pytest.param(
            (Device(GPU, "a", nodes=1, healthy=False),),
            (),
            ("a",),
            {"a": (1, True)},
            [],
            id="became healthy",
        ),
        pytest.param(
            (Device(GPU, "a", nodes=2),),
            (held("a"),),
            ("a",),
            {"a": (2, True)},
            [f"device a of {GPU} is declared on other NUMA nodes than in the state files; using the declared nodes"],
            id="known on another node",
        ),
        pytest.param(
            DECLARED,
            (held("x", node=1),),
            ("w", "x", "y", "z"),
            {"w": (1, True), "x": (2, True), "y": (1, True), "z": (2, True)},
            [],
            id="made-up ids are matched by node, the rest in order",
        ),
        pytest.param(
            DECLARED[:2],
            (held("x", "y", node=1),),
            ("x", "y"),
            {"x": (2, True), "y": (2, True), DECLARED[0].id: (1, False), DECLARED[1].id: (1, False)},
            [
                (
                    f"devices x, y of {GPU} are in the state files, but too few are declared on the same NUMA nodes; "
                    "added there"
                ),
                (
                    f"devices {DECLARED[0].id}, {DECLARED[1].id} of {GPU} are declared but not healthy "
                    "in the state files; treated as unhealthy"
                ),
            ],
            id="declared on other nodes than held",
        ),
        pytest.param(
            DECLARED[:1],
            (),
            ("x", "y"),
            {"x": (1, True), "y": (None, True)},
            [f"the state files do not contain the topology of a free device of {GPU}"],
            id="too few declared",
        ),
        pytest.param(DECLARED[:1], (), None, {DECLARED[0].id: (1, True)}, [], id="declared, but not in the file"),
        pytest.param((), (held("x"),), None, {"x": (1, False)}, [], id="held, but its plugin is gone"),
    ],
)
def test_known_devices_are_matched_with_the_file(known, entries, registered, devices, gaps):
    state = DeviceState(entries=entries, registered={} if registered is None else {GPU: registered})

    (restored,) = restore_devices(known, state)

    assert {id_: (device.nodes, device.healthy) for id_, device in restored.devices.items()} == devices
    assert all(device.id == id_ and device.resource == GPU for id_, device in restored.devices.items())
    assert [gap.text for gap in restored.gaps] == gaps
    assert [gap.resource for gap in restored.gaps if gap.kind is GapKind.DEVICE_TOPOLOGY] == [
        GPU for gap in gaps if gap.startswith("the state files do not contain the topology")
    ]


def test_a_resource_is_absent_if_neither_the_file_nor_the_machine_lists_it():
    state = DeviceState(entries=(held("x"),), registered={"vendor.io/nic": None})

    assert [(restored.resource, restored.present) for restored in restore_devices((), state)] == [
        (GPU, False),
        ("vendor.io/nic", True),
    ]


def through_files(original: Host) -> KubeletFiles:
    """Return the files as a kubelet with the same settings reads them."""
    states, gates = export_ledger(original), original.settings.gates
    assert states.cpu
    assert states.memory
    assert states.devices
    memory_policy = original.settings.memory_policy
    return KubeletFiles(
        cpu=state_files.parse_cpu_state(
            state_files.dump_cpu_state(states.cpu, gates=gates),
            configured_policy=original.settings.cpus.policy,
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


def new_pods(original: Host, uid: str) -> st.SearchStrategy[Pod]:
    """Pods that request only huge page sizes of the machine, and zero pages only of sizes that every node has.

    Requesting zero pages allocates an empty block on some node, and a kubelet cannot start with one on a node without
    that size.
    """
    sizes = [{pages.resource for pages in node.hugepages} for node in original.machine.nodes]
    somewhere, everywhere = set().union(*sizes), set.intersection(*sizes)

    def known(wanted: Pod) -> bool:
        resources = (wanted.resources, *(container.resources for container in wanted.all_containers))
        asked = (each for original in resources for each in original.requests.items())
        return all(name in (everywhere if much.is_zero else somewhere) for name, much in asked if is_hugepages(name))

    return arrivals(uid).filter(known)


def holdings(original: Host) -> Any:
    """Return what matters to the next pod, except what the last one left to reuse."""
    cpus, memory, devices = original.ledger.cpus, original.ledger.memory, original.ledger.devices
    return (
        (cpus.shared, cpus.held, cpus.pod_held, cpus.free),
        (memory.nodes, memory.held, memory.pod_held),
        (devices.inventories, devices.held, devices.in_use, devices.free),
    )


@given(hosts(), st.data())
def test_a_host_continues_from_its_files(original, data):
    """All holdings are restored, and the decision about the next pod is the same.

    If the pods are not listed, only their holdings count, so the fit check may admit more.
    """
    for number in range(data.draw(st.integers(1, 5))):
        pod = data.draw(new_pods(original, f"u{number}"))
        if admit(original, pod).admitted and data.draw(st.booleans()):
            original.start_container(pod.uid, data.draw(st.sampled_from(pod.all_containers)).name)
    for uid in (
        data.draw(st.lists(st.sampled_from(sorted(original.ledger.pods)), max_size=2)) if original.ledger.pods else ()
    ):
        original.release(uid)
    running = [resident.pod for resident in original.ledger.pods.values()]
    fresh = Host(original.machine, original.settings)

    restored = restore_ledger(fresh, through_files(original), running)
    again = Host(original.machine, original.settings, ledger=restored.ledger)

    event(f"{len(running)} pods, {len(again.ledger.cpus.held)} with exclusive CPUs")
    assert restored.gaps == ()
    assert holdings(again) == holdings(original)
    assert again.ledger.used == original.ledger.used
    following = data.draw(arrivals("next"))
    expected, decided = admit(original, following), admit(again, following)
    assert (decided.outcome, decided.rejection, decided.placements) == (
        expected.outcome,
        expected.rejection,
        expected.placements,
    )
    check_idle_once_all_are_released(again, fresh)


@settings(max_examples=examples(33))
@given(hosts(), st.data())
def test_unlisted_pods_release_everything_too(original, data):
    for number in range(3):
        admit(original, data.draw(new_pods(original, f"u{number}")))
    fresh = Host(original.machine, original.settings)

    restored = restore_ledger(fresh, through_files(original))
    again = Host(original.machine, original.settings, ledger=restored.ledger)

    assert holdings(again) == holdings(original)
    assert set(restored.unknown) <= set(original.ledger.pods)
    for uid in restored.unknown:
        assert again.ledger.pods[uid].usage.milli_cpu == 1000 * original.ledger.cpus.owned(uid).bit_count()
    check_idle_once_all_are_released(again, fresh)


def check_idle_once_all_are_released(original: Host, idle: Host) -> None:
    for uid in tuple(original.ledger.pods):
        original.release(uid)
    assert holdings(original) == holdings(idle)
    assert original.ledger.used == UsedResources()


@settings(max_examples=examples(33))
@given(hosts(), st.data())
def test_the_same_ledger_gives_the_same_files(original, data):
    """Also after it was restored from files."""
    for number in range(3):
        admit(original, data.draw(new_pods(original, f"u{number}")))

    states = through_files(original)

    assert replace(export_ledger(original), gaps=()) == states
    restored = restore_ledger(Host(original.machine, original.settings), states)
    assert replace(export_ledger(Host(original.machine, original.settings, ledger=restored.ledger)), gaps=()) == states


def test_a_missing_allocate_response_is_a_gap():
    original = host()
    original.admit(pod("a", gpu="1"))
    original.admit(pod("b", gpu="1"))

    some = export_ledger(original, responses={("a", "app", GPU): b"\x01"})
    all_ = export_ledger(original, responses={("a", "app", GPU): b"\x01", ("b", "app", GPU): b"\x02"})

    assert some.devices
    assert [entry.response for entry in some.devices.entries] == [b"\x01", b""]
    assert some.gaps == (f"the Allocate response of the plugin of {GPU} is unknown",)
    assert all_.gaps == ()


def test_devices_are_listed_under_their_nodes_and_missing_ones_under_none():
    original = host(Policy.BEST_EFFORT)
    ill = Device(GPU, "ill", nodes=1, healthy=False)
    original.update_devices(GPU, [Device(GPU, "both", nodes=0b11), Device(GPU, "nowhere", nodes=None), ill])
    original.admit(pod("a", gpu="2"))

    before = export_ledger(original).devices
    original.update_devices(GPU, [])
    after = export_ledger(original).devices

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
    original = host(cpus=strict, fit_check=False)
    original.admit(pod("a", cpu="3"))
    original.admit(pod("b", cpu="4"))
    states = export_ledger(original)

    assert states.cpu
    assert states.cpu.default == 0
    assert restore_ledger(original, states).ledger.cpus.shared == 0
    with pytest.raises(StateError, match="default cpuset cannot be empty"):
        restore_ledger(Host(original.machine, replace(original.settings, kubelet_faults=True)), states)


def test_empty_blocks_of_missing_types_are_not_written():
    """The kubelet writes empty blocks of a missing huge page size, and then cannot start with them."""
    original = host()
    asked = {"cpu": "2", "memory": "1Gi", "hugepages-1Gi": "0"}
    assert original.admit(Pod(name="a", uid="a", containers=(guaranteed("app", asked),))).admitted
    ledger = original.ledger.memory
    assert [block.type for block in ledger.blocks("a", "app") or ()] == ["hugepages-1Gi", "memory"]

    states = export_ledger(original)
    restored = restore_ledger(host(), states)

    assert states.memory
    assert [block.type for block in states.memory.entries["a"]["app"]] == ["memory"]
    assert restored.ledger.memory.nodes[0].tables == ledger.nodes[0].tables
    written_as_it_is = replace(states.memory, machine_state=ledger.nodes, entries=ledger.held)
    with pytest.raises(StateError, match="uses memory resource that does not exist"):
        restore_ledger(host(), replace(states, memory=written_as_it_is))


def test_files_in_a_directory_restore_the_host(tmp_path):
    original = host()
    original.admit(pod("a", gpu="1"))

    write_state_files(tmp_path, export_ledger(original), gates=original.settings.gates)
    files = read_state_files(tmp_path, gates=original.settings.gates)
    restored = restore_ledger(host(), files, [pod("a", gpu="1")])

    assert (restored.gaps, restored.unknown) == ((), ())
    assert holdings(Host(original.machine, original.settings, ledger=restored.ledger)) == holdings(original)
