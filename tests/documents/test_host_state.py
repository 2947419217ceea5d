"""HostState: the whole host as a small object that reads back as the same host."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from alignup.align.claims.ledger import MODEL, ClaimLedger
from alignup.align.claims.resource_claims import DeviceId, SliceDevice
from alignup.align.errors import AlignError, StateError
from alignup.align.locality import DeviceLink, LinkKind, PciPath
from alignup.align.machine import CadvisorReport, Device, PciDevice
from alignup.align.workload import Pod
from alignup.documents.codec import encode
from alignup.documents.host_state import HostStateDocument, HostStateObject, writer
from alignup.documents.host_state.schema import DeviceGroupDocument, HostLedgerDocument
from alignup.documents.host_state.writer import ledger_document, machine_document, to_object
from alignup.documents.steering import MARKER_RESOURCE
from alignup.kubernetes import configuration
from alignup.kubernetes.api.host_states import host_state_reader
from alignup.kubernetes.manifests.documents import to_json
from alignup.machines.synthetic import parse
from alignup.observe.marker_steering import make_markers
from alignup.observe.observation import join
from alignup.observe.published_objects import host_state
from alignup.testing.simulated_kubelet import DEVICES
from tests.align.hosts import GPU, pod
from tests.effort import bounded, examples
from tests.observe.api_objects import received
from tests.observe.kubelets import ObservedKubelet
from tests.strategies_pods import aligned, container, guaranteed, pods


def through_json(kubelet, **sources):
    """What another program reads from the object of the host."""
    state = host_state(join(kubelet.sources(**sources))).replace(generation=7)
    return host_state_reader().read(received({"metadata": {"name": "n"}, **to_object(state)}))


def read_ledger(ledger):
    kubelet = ObservedKubelet()
    state = HostStateDocument(
        machine=machine_document(kubelet.machine),
        configuration=configuration.alignment_fields(kubelet.configuration),
        ledger=ledger,
    )
    return host_state_reader().read(received(to_object(state)))


def busy_kubelet(**changes):
    kubelet = ObservedKubelet(**changes)
    kubelet.run(pod("a", gpu="1"))
    kubelet.run(replace(pod("b", cpu="3", memory="2Gi"), priority=7))
    kubelet.run(Pod(name="shared", uid="s", containers=(container("app", {"cpu": "1500m", "memory": "1Gi"}),)))
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
    kubelet = ObservedKubelet(topologyManagerPolicy="best-effort")
    kubelet.run(pod("a", memory="20Gi", cpu="5"))
    kubelet.run(pod("b", memory="10Gi", cpu="1"))
    kubelet.end("a")
    kubelet.remove_ended()  # which leaves the memory of b elsewhere than it would be now

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

    claims = read_ledger(ledger_document(host.ledger)).ledger.claims

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


PATHS = st.none() | st.builds(
    PciPath,
    st.sampled_from(["pci0000:3a", "pci10000:00"]),
    st.lists(st.sampled_from(["0000:3a:00.0", "0000:3b:04.0", "0000:3c:08.0"]), unique=True).map(tuple),
)
FUNCTIONS = st.lists(
    st.tuples(PATHS, st.none() | st.integers(0, 1), st.none() | st.sampled_from([0x030200, 0x020000])), max_size=6
)


def tied_kubelet(functions, links=()):
    """A kubelet whose machine has PCI devices: the first is no device of a plugin, and each other one of them is."""
    pci = tuple(
        PciDevice(f"0000:{0x40 + number:02x}:00.0", kind=kind, node=node, path=path)
        for number, (path, node, kind) in enumerate(functions)
    )
    ids = [device.address if number % 2 else f"GPU-{number}" for number, device in enumerate(pci)]
    machine = replace(parse("pack:2 numa:1 core:4 pu:1", memory=1 << 34), pci=pci, links=links)
    devices = tuple(Device(GPU, id_, nodes=1) for id_ in (*ids[1:], "unknown"))
    sources = ObservedKubelet(machine=machine, devices=devices).sources(
        addresses={id_: device.address for id_, device in zip(ids, pci, strict=True)}
    )
    return machine, ids, sources


@given(FUNCTIONS)
@settings(max_examples=examples(60))
def test_the_place_of_devices_that_plugins_offer_reads_back(functions):
    machine, ids, sources = tied_kubelet(functions)

    state = to_object(host_state(join(sources)))
    report = host_state_reader().read(received(state))

    locality = report.machine.locality
    assert set(report.machine.pci) == set(machine.pci[1:])
    assert [locality.find(id_) for id_ in ids[1:]] == [device.address for device in machine.pci[1:]]
    assert locality.find("unknown") is None
    assert ("pci" in state["ledger"]) is bool(machine.pci[1:])


def test_an_id_of_two_resources_is_no_address():
    pci = (PciDevice("0000:40:00.0"), PciDevice("0000:41:00.0"))
    machine = replace(parse("pack:2 numa:1 core:4 pu:1", memory=1 << 34), pci=pci)
    devices = tuple(Device(resource, id_, 1) for resource in ("a.com/x", "b.com/y") for id_ in "07")
    kubelet = ObservedKubelet(machine=machine, devices=devices)
    addresses = {"a.com/x=0": pci[0].address, "b.com/y=0": pci[0].address, "a.com/x=7": pci[1].address}

    locality = (
        host_state_reader()
        .read(received(to_object(host_state(join(kubelet.sources(addresses=addresses))))))
        .machine.locality
    )

    assert [locality.find("0"), locality.find("7")] == [pci[0].address, None]


def test_links_between_devices_that_plugins_offer_read_back():
    functions = [(PciPath("pci0000:3a", ("0000:3a:00.0",)), 0, 0x030200)] * 4
    a, b, c, d = (f"0000:{number:02x}:00.0" for number in range(0x40, 0x44))
    links = (
        DeviceLink(LinkKind.NVLINK, (a, b), 2),
        DeviceLink(LinkKind.NVLINK, (b, c), 4),
        DeviceLink(LinkKind.NVSWITCH, (a, b, c, d), 18),
        DeviceLink(LinkKind.C2C, (b,), 1),
    )
    state = to_object(host_state(join(tied_kubelet(functions, links)[2])))
    state["ledger"]["links"].append({"kind": "teleport", "devices": [b, c]})  # of a newer observer

    report = host_state_reader().read(received(state))

    assert report.machine.links == (links[1], DeviceLink(LinkKind.NVSWITCH, (b, c, d), 18))


def test_a_machine_whose_devices_have_no_address_publishes_what_it_did():
    kubelet = busy_kubelet(machine=replace(ObservedKubelet().machine, pci=(PciDevice("0000:3b:00.0"),)))

    assert to_object(host_state(join(kubelet.sources()))) == to_object(host_state(join(busy_kubelet().sources())))


def test_published_places_are_limited(monkeypatch):
    monkeypatch.setattr(writer, "MAX_PCI_DEVICES", 2)
    monkeypatch.setattr(writer, "MAX_LINKED_DEVICES", 3)
    functions = [(None, 0, 0x030200)] * 5
    links = (DeviceLink(LinkKind.NVLINK, ("0000:41:00.0", "0000:42:00.0")),) * 2
    ledger = to_object(host_state(join(tied_kubelet(functions, links)[2])))["ledger"]

    assert [group["addresses"] for group in ledger["pci"]] == [["0000:41:00.0", "0000:42:00.0"]]
    assert "links" not in ledger


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pci": [{"addresses": ["x"] * 4097}]}, "ledger.pci: 4097 are listed"),
        ({"pci": [{"addresses": ["x"], "path": "pci0:0/" + "b/" * 33}]}, "ledger.pci.path: 33 are listed"),
        ({"pci": [{"addresses": ["x"], "class": "gpu"}]}, "'gpu' is not a class"),
        ({"pci": [{}]}, "ledger.pci"),
        (
            {"pci": [{"addresses": ["x"]}], "links": [{"kind": "nvlink", "devices": ["x"] * 4097}]},
            "ledger.links: 4097 are listed",
        ),
    ],
)
def test_places_that_no_node_needs_are_refused(changes, message):
    state = to_object(host_state(join(busy_kubelet().sources())))
    state["ledger"] |= changes

    with pytest.raises(AlignError, match=re.escape(message)):
        host_state_reader().read(received(state))


def test_an_unknown_ledger_is_an_error_with_its_reason():
    state = HostStateObject(metadata=HostStateObject().metadata.replace(name="n"), problems=["the file is damaged"])

    with pytest.raises(StateError, match="what node n holds is unknown: the file is damaged"):
        host_state_reader().read(state)


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
    kubelet = ObservedKubelet(**changes)

    again = configuration.read(to_json(configuration.alignment_fields(kubelet.configuration)))

    assert configuration.host_settings(again, kubelet.machine) == kubelet.host.settings
    assert again.warnings == ()


def test_a_host_state_is_small():
    """A large node: 128 cores, 8 GPUs, 60 pods, 20 of them with exclusive resources."""
    gpus = tuple(
        Device("nvidia.com/gpu", f"GPU-{index:08x}-5d1f-11ee-8c99-0242ac120002", 1 << index // 4) for index in range(8)
    )
    kubelet = ObservedKubelet(shape="pack:2 numa:1 core:64 pu:2", devices=gpus)
    for index in range(60):
        uid = f"{index:08d}-5d1f-11ee-8c99-0242ac120002"
        exclusive = {"cpu": "8", "memory": "1Gi", **({"nvidia.com/gpu": "1"} if index < 8 else {})}
        container_ = (
            guaranteed("trainer", exclusive) if index < 20 else container("app", {"cpu": "250m", "memory": "128Mi"})
        )
        kubelet.run(Pod(name=f"workload-7c9f8d6b5-{index:05d}", namespace="team-a", uid=uid, containers=(container_,)))

    state = host_state(join(kubelet.sources(), settled=False))

    sizes = {name: len(encode(part)) for name, part in to_object(state).items()}
    assert len(encode(to_object(state))) <= 15_500, sizes
    assert sizes["machine"] <= 1_700, sizes


def test_markers_take_little_room_and_read_back():
    machine = parse("pack:8 numa:1 core:8 pu:2", memory=1 << 34)
    kubelet = ObservedKubelet(machine=machine, devices=make_markers(machine, None))
    requests = {"cpu": "2", "memory": "1Gi", MARKER_RESOURCE: "1"}
    kubelet.run(Pod(name="a", uid="a", containers=(guaranteed("app", requests),)))

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
    kubelet = ObservedKubelet(devices=devices)

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
        read_ledger(HostLedgerDocument(devices=[group]))


STEPS = st.lists(
    st.tuples(st.sampled_from("aaarrhpuclx"), st.integers(0, 99), pods(asks=aligned) | pods()), max_size=12
)


def reported_after(kubelet, steps):
    """Yield the HostState of a node after each of these steps."""
    host, configured, machine_generation = kubelet.host, {}, 1
    for generation, (step, number, wanted) in enumerate((("", 0, None), *steps), start=1):
        uids = list(host.ledger.pods)
        if step == "a":
            host.admit(replace(wanted, uid=f"pod-{generation}", name=f"pod-{generation}"))
        elif step == "r" and uids:
            host.release(uids[number % len(uids)])
        elif step == "h":
            gpus = [replace(device, healthy=bool(number & 1 << place)) for place, device in enumerate(DEVICES)]
            host.update_devices(GPU, gpus)
        elif step == "p" and uids:  # the same uid, something else
            admitted = host.ledger.pods[uids[0]]
            changed = admitted._replace(pod=replace(admitted.pod, priority=number))
            host.ledger = replace(host.ledger, pods={**host.ledger.pods, uids[0]: changed})
        elif step == "u":
            host.ledger = replace(host.ledger, devices=host.ledger.devices.give_up(GPU))
        elif step == "c":
            configured, machine_generation = {"maxPods": 50 + number}, generation
        elif step == "l":
            lost = host.ledger.cpus.available & 1 << number % 8
            host.ledger = replace(
                host.ledger, cpus=replace(host.ledger.cpus, shared=host.ledger.cpus.shared & ~lost, lost=lost)
            )
        elif step == "x":
            device = SliceDevice(DeviceId("nic.example.com", "n", f"nic-{number}"), {}, nodes=1)
            held = {uid: {"app": {"default/nic": (device.id,)}} for uid in uids[:1]}
            host.ledger = replace(host.ledger, claims=ClaimLedger((device,), held))
        yield HostStateDocument(
            generation=generation,
            machine_generation=machine_generation,
            machine=machine_document(kubelet.machine),
            configuration=configuration.alignment_fields(kubelet.configuration) | configured,
            ledger=ledger_document(host.ledger),
        )


@given(STEPS, st.sampled_from(["single-numa-node", "best-effort"]), st.booleans())
@settings(max_examples=examples(100))
def test_a_node_reads_the_same_whatever_was_read_of_it_before(steps, policy, numbered):
    kubelet = ObservedKubelet(topologyManagerPolicy=policy)
    reader, documents, before = host_state_reader(), {}, None
    for state in reported_after(kubelet, steps):
        received_state = received(to_object(state if numbered else state.replace(machine_generation=0)))

        report, fresh = reader.read(received_state), host_state_reader().read(received_state)

        assert report == fresh
        assert list(report.ledger.pods) == list(fresh.ledger.pods)
        for held in state.ledger.pods:
            if before and documents.get(held.uid) == held:
                uid, ledger, last = held.uid, report.ledger, before.ledger
                assert ledger.pods[uid] is last.pods[uid]
                assert ledger.cpus.held.get(uid) is last.cpus.held.get(uid)
                assert ledger.memory.held.get(uid) is last.memory.held.get(uid)
                assert ledger.devices.held.get(uid) is last.devices.held.get(uid)
        documents, before = {held.uid: held for held in state.ledger.pods}, report


def full_kubelet(*uids):
    kubelet = ObservedKubelet(shape="pack:2 numa:1 core:64 pu:2")
    for uid in uids:
        kubelet.run(pod(uid, cpu="1", memory="16Mi"))
    return kubelet


def test_a_report_costs_what_changed():
    uids = [f"pod-{number}" for number in range(100)]
    states = [
        received(full_kubelet(*listed).host_state("n", machine_generation=1))
        for listed in (uids, [*uids[:-1], "other"])
    ]
    reader = host_state_reader()
    with pytest.raises(AssertionError, match="too much work"), bounded(3_000):
        reader.read(states[0])
    reader.read(states[0])

    with bounded(800):
        report = reader.read(states[1])

    assert list(report.ledger.pods) == [*uids[:-1], "other"]


def test_a_machine_with_the_same_generation_is_not_read_again():
    """The generation is that of one object; a new one begins again."""
    state = received(ObservedKubelet().host_state("n", machine_generation=3))
    reader = host_state_reader()
    first = reader.read(state)
    unread = state.replace(machine=Raw(b'"not read"'), configuration=Raw(b'"not read"'))

    assert reader.read(unread).machine is first.machine
    with pytest.raises(AlignError, match="machine and configuration: Expected `object`"):
        reader.read(unread.replace(metadata=unread.metadata.replace(uid="another")))
    with pytest.raises(AlignError, match="machine and configuration: Expected `object`"):
        reader.read(unread, kubelet_version="v1.33.0")


def test_a_pod_that_is_listed_twice_is_refused():
    state = busy_kubelet().host_state("n")
    state["ledger"]["pods"].append(state["ledger"]["pods"][2])  # it holds no CPUs

    with pytest.raises(StateError, match="default/shared and default/shared have the same uid"):
        host_state_reader().read(received(state))


def test_a_pod_that_cannot_be_decoded_is_named():
    state = busy_kubelet().host_state("n")
    state["ledger"]["pods"][1]["cpus"] = 7

    with pytest.raises(AlignError, match=r"ledger.pods\[1\]: Expected `object`, got `int` - at `\$.cpus`"):
        host_state_reader().read(received(state))
