"""HostState: the whole host as a small object that reads back as the same host."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.claims.ledger import MODEL, ClaimLedger
from alignup.align.claims.resource_claims import DeviceId, SliceDevice
from alignup.align.errors import AlignError, StateError
from alignup.align.machine import CadvisorReport, Device, PciDevice
from alignup.align.workload import Pod
from alignup.documents.codec import encode
from alignup.documents.host_state import DeviceGroupDocument, HostLedgerDocument, HostStateDocument, check_limits
from alignup.documents.steering import MARKER_RESOURCE
from alignup.kubernetes import configuration
from alignup.kubernetes.api.client import _decode
from alignup.kubernetes.api.host_states import (
    HOST_STATES,
    HostStateReader,
    ledger_document,
    machine_document,
    to_object,
)
from alignup.kubernetes.manifests.documents import to_json
from alignup.machines.synthetic import parse
from alignup.observe.marker_steering import make_markers
from alignup.observe.observation import join
from alignup.observe.published_objects import host_state
from tests.align.hosts import pod
from tests.effort import examples
from tests.observe.kubelets import GPU, SimulatedKubelet
from tests.strategies_pods import container, guaranteed


def through_json(kubelet, **sources):
    """What another program reads from the object of the host."""
    state = host_state(join(kubelet.sources(**sources))).replace(generation=7)
    return HostStateReader().read(_decode(encode({"metadata": {"name": "n"}, **to_object(state)}), HOST_STATES.type))


def busy_kubelet(**changes):
    kubelet = SimulatedKubelet(**changes)
    kubelet.admit(pod("a", gpu="1"))
    kubelet.admit(replace(pod("b", cpu="3", memory="2Gi"), priority=7))
    kubelet.admit(Pod(name="shared", uid="s", containers=(container("app", {"cpu": "1500m", "memory": "1Gi"}),)))
    return kubelet


def test_a_host_reads_back_as_it_was():
    kubelet = busy_kubelet()

    report = through_json(kubelet)

    assert (report.host, report.sequence, report.kubelet) == ("n", 7, "1")
    assert report.settings == replace(kubelet.host.settings, kubelet_faults=True)
    assert report.machine.kubelet_view() == kubelet.machine.kubelet_view()
    expected = kubelet.host.ledger
    assert report.ledger.alignment_key() == expected.alignment_key()
    assert report.ledger.used == expected.used
    assert [report.ledger.pod_name(uid) for uid in report.ledger.pods] == ["default/a", "default/b", "default/shared"]
    assert report.ledger.pods["b"].pod.priority == 7
    assert report.ledger.pods["b"].pod.qos == "Guaranteed"
    assert (report.ledger.cpus.held, report.ledger.memory.held, report.ledger.devices.held) == (
        expected.cpus.held,
        expected.memory.held,
        expected.devices.held,
    )


def test_released_pods_leave_the_same_host():
    kubelet = busy_kubelet()
    report = through_json(kubelet)
    again = type(kubelet.host)(report.machine, report.settings, ledger=report.ledger)

    for uid in ("a", "b", "s"):
        again.release(uid)

    assert again.ledger.alignment_key() == again.initial_ledger().alignment_key()
    assert again.ledger.used == again.initial_ledger().used


def test_groups_of_numa_nodes_keep_where_memory_is_reserved():
    kubelet = SimulatedKubelet(topologyManagerPolicy="best-effort")
    kubelet.admit(pod("a", memory="20Gi", cpu="5"))
    kubelet.admit(pod("b", memory="10Gi", cpu="1"))
    kubelet.host.release("a")  # which leaves the memory of b elsewhere than it would be now
    kubelet.allocated.pop("a")
    kubelet.pods.pop("a")

    report = through_json(kubelet)

    assert report.ledger.memory.nodes == kubelet.host.ledger.memory.nodes


def test_lost_cpus_and_late_plugins_are_kept():
    kubelet = busy_kubelet()
    files = kubelet.files
    lost = replace(files, cpu=replace(files.cpu, default=files.cpu.default & ~(1 << 3)))
    late = replace(kubelet.allocatable, devices=())
    files = replace(lost, devices=replace(lost.devices, registered={**lost.devices.registered, "example.com/none": ()}))

    report = through_json(kubelet, files=files, allocatable=late)

    assert report.ledger.cpus.lost == 1 << 3
    assert report.ledger.devices.free[GPU] == 0
    assert {GPU, "example.com/none"} <= report.ledger.devices.handled


def test_a_resource_whose_plugin_is_gone_is_not_managed():
    kubelet = busy_kubelet()
    kubelet.host.ledger = replace(kubelet.host.ledger, devices=kubelet.host.ledger.devices.take_back("a").give_up(GPU))

    report = through_json(kubelet)

    assert GPU not in report.ledger.devices.handled


NAMES = st.text("abz.-019", min_size=1, max_size=12)
DEVICE_IDS = st.builds(DeviceId, NAMES, st.lists(NAMES, min_size=1, max_size=2).map("/".join), NAMES)
HELD = st.dictionaries(NAMES, st.dictionaries(NAMES, st.lists(DEVICE_IDS, min_size=1, max_size=3).map(tuple)))


@given(
    st.lists(
        st.tuples(DEVICE_IDS, st.none() | st.integers(1, 3), st.text(max_size=20)),
        max_size=8,
        unique_by=lambda described: described[0],
    ),
    st.dictionaries(st.sampled_from("ab"), HELD),
)
@settings(max_examples=examples(60))
def test_claims_read_back_as_they_were(described, held):
    kubelet = busy_kubelet()
    devices = [SliceDevice(id_, {MODEL: model} if model else {}, nodes=nodes) for id_, nodes, model in described]
    held = {uid: containers for uid, containers in held.items() if containers}
    host = join(kubelet.sources()).host
    host.ledger = replace(host.ledger, claims=ClaimLedger(tuple(devices), held))
    state = HostStateDocument(
        machine=machine_document(kubelet.machine),
        configuration=configuration.alignment_fields(kubelet.configuration),
        ledger=ledger_document(host.ledger),
    )

    claims = HostStateReader().read(_decode(encode(to_object(state)), HOST_STATES.type)).ledger.claims

    if claims is None:
        assert not devices
        assert not held
        return
    assert claims.held == held
    by_id = {device.id: device for device in claims.devices}
    assert by_id == {device.id: device for device in devices}


def test_a_host_state_of_an_older_observer_has_no_claims():
    ledger = to_object(host_state(join(busy_kubelet().sources())))["ledger"]
    assert "claimDevices" not in ledger
    assert not any("claims" in held for held in ledger["pods"])

    assert through_json(busy_kubelet()).ledger.claims is None


def test_an_unknown_ledger_is_an_error_with_its_reason():
    state = HostStateDocument(metadata=HOST_STATES.type().metadata.replace(name="n"), problems=["the file is damaged"])

    with pytest.raises(StateError, match="what node n holds is unknown: the file is damaged"):
        HostStateReader().read(state)


def test_the_machine_has_only_what_decisions_depend_on():
    machine = parse("pack:2 numa:1 core:2 pu:2")
    report = CadvisorReport(cpus=machine.cpus, num_cpus=8, num_sockets=2)
    full = replace(
        machine, report=report, pci=(PciDevice("0000:00:00.0"),), devices=(Device(GPU, "x", 1),), gaps=("a gap",)
    )

    assert machine_document(full) == machine_document(machine)
    other = replace(full, report=replace(report, num_sockets=1))
    assert machine_document(other)["report"]["num_sockets"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reservedSystemCPUs": "0-1", "systemReserved": {"memory": "64Mi"}, "maxPods": 50, "podsPerCore": 3},
        {"featureGates": {"CPUManagerPolicyAlphaOptions": True, "NodeSwap": True}, "kubeReserved": {"cpu": "500m"}},
        {
            "evictionHard": {"memory.available": "1Gi"},
            "reservedMemory": [{"numaNode": 1, "limits": {"memory": "1088Mi"}}],
        },
        {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}, "topologyManagerScope": "pod"},
    ],
    ids=["defaults", "cpus", "gates", "eviction", "options"],
)
def test_the_published_configuration_means_the_same(changes):
    kubelet = SimulatedKubelet(**changes)

    again = configuration.read(to_json(configuration.alignment_fields(kubelet.configuration)))

    assert configuration.host_settings(again, kubelet.machine) == kubelet.host.settings
    assert again.warnings == ()


def test_a_host_state_is_small():
    """A large node: 128 cores, 8 GPUs, 60 pods, 20 of them with exclusive resources."""
    gpus = tuple(
        Device("nvidia.com/gpu", f"GPU-{index:08x}-5d1f-11ee-8c99-0242ac120002", 1 << index // 4) for index in range(8)
    )
    kubelet = SimulatedKubelet(shape="pack:2 numa:1 core:64 pu:2", devices=gpus)
    for index in range(60):
        uid = f"{index:08d}-5d1f-11ee-8c99-0242ac120002"
        exclusive = {"cpu": "8", "memory": "1Gi", **({"nvidia.com/gpu": "1"} if index < 8 else {})}
        container_ = (
            guaranteed("trainer", exclusive) if index < 20 else container("app", {"cpu": "250m", "memory": "128Mi"})
        )
        kubelet.admit(
            Pod(name=f"workload-7c9f8d6b5-{index:05d}", namespace="team-a", uid=uid, containers=(container_,))
        )

    state = host_state(join(kubelet.sources(), settled=False))

    sizes = {name: len(encode(part)) for name, part in to_object(state).items()}
    assert len(encode(to_object(state))) <= 15_500, sizes
    assert sizes["machine"] <= 1_700, sizes


def test_markers_take_little_room_and_read_back():
    machine = parse("pack:8 numa:1 core:8 pu:2", memory=1 << 34)
    kubelet = SimulatedKubelet(machine=machine, devices=make_markers(machine, None))
    requests = {"cpu": "2", "memory": "1Gi", MARKER_RESOURCE: "1"}
    kubelet.admit(Pod(name="a", uid="a", containers=(guaranteed("app", requests),)))

    state = host_state(join(kubelet.sources()))

    assert len(encode(state.ledger)) < 1_000  # 880 markers
    assert through_json(kubelet).ledger.alignment_key() == kubelet.host.ledger.alignment_key()


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param((Device(MARKER_RESOURCE, "numa-0-000", nodes=3),), id="on two NUMA nodes"),
        pytest.param((Device(MARKER_RESOURCE, "numa-1-000", nodes=1),), id="on another NUMA node"),
        pytest.param((Device(MARKER_RESOURCE, "numa-0-000"),), id="without topology"),
        pytest.param(
            (Device(MARKER_RESOURCE, "mine", nodes=1), Device(MARKER_RESOURCE, "numa-0-0", nodes=1)), id="others"
        ),
    ],
)
def test_markers_of_another_plugin_are_listed(devices):
    kubelet = SimulatedKubelet(devices=devices)

    assert through_json(kubelet).machine.devices == devices


@pytest.mark.parametrize(
    ("nodes", "markers", "problem"),
    [
        ("0-1", "0-99999", "ledger.devices: 200000 are listed"),
        ("0-99999", "0-99999", "ledger.devices: 10000000000 are listed"),
        ("0", "0-100000", "a CPU or NUMA node has a number of six digits"),
        ("0-100000", "0", "a CPU or NUMA node has a number of six digits"),
    ],
)
def test_markers_without_end_are_refused(nodes, markers, problem):
    group = DeviceGroupDocument(resource=MARKER_RESOURCE, nodes=nodes, markers=markers)

    with pytest.raises(AlignError, match=problem):
        check_limits(HostStateDocument(ledger=HostLedgerDocument(devices=[group])))
