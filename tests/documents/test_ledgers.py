"""A stored ledger restores as the same ledger, or the error names what each pod can no longer hold."""

import json
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import ParseError, ProviderError, QuantityError, RestoreError, StateError
from alignup.align.hint import Hint, Provider
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.machine import Device, Machine
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.align.workload import Container, ContainerStatus, Pod, PodClaim, QoS, Resources
from alignup.documents import codec
from alignup.documents.ledgers import (
    PodEntryDocument,
    ResidueDocument,
    check_holders,
    pod_entry,
    residue,
    restore_ledger,
)
from alignup.documents.pod_documents import PodDocument, pod_document, read_pod
from alignup.machines.synthetic import parse
from tests.align.hosts import GIB, GPU, NIC, admit, arrivals, devices, hosts, make_host, make_pod
from tests.effort import examples
from tests.strategies_pods import amounts, guaranteed

Document = dict[str, Any]


class StoredLedger(codec.Document, frozen=True):
    pods: list[PodEntryDocument]
    residue: ResidueDocument


def stored(host: Host) -> Document:
    """Return the ledger of a host as decoded JSON."""
    entries = [pod_entry(host.ledger, uid) for uid in host.ledger.pods]
    document = StoredLedger(entries, residue(host.ledger, providers=host.providers))
    plain: Document = json.loads(codec.encode(document))
    return plain


def ledger_of(document: Document, host: Host, **more: Any) -> Ledger:
    """Restore a ledger on the idle ledger of a host."""
    read = codec.convert(document, StoredLedger)
    return restore_ledger(read.pods, read.residue, idle=host.ledger, **more)


def conflicts(document: Document, host: Host) -> list[str]:
    """Return why a ledger cannot be restored on a host."""
    with pytest.raises(RestoreError) as caught:
        ledger_of(document, host)
    return list(caught.value.problems)


def restored(document: Document, like: Host) -> Host:
    """Return a host with the same machine and settings, and a restored ledger."""
    idle = Host(like.machine, like.settings)
    return Host(like.machine, like.settings, ledger=ledger_of(document, idle, providers=idle.providers))


def without(document: Document, uids: Collection[str]) -> Document:
    return {**document, "pods": [entry for entry in document["pods"] if entry["pod"]["uid"] not in uids]}


def live(host: Host, data: st.DataObject) -> None:
    """Admit, start and release pods at random."""
    for number in range(data.draw(st.integers(1, 6))):
        admit(host, data.draw(arrivals(f"u{number}")))
        residents = [resident.pod for resident in host.ledger.pods.values()]
        action = data.draw(st.sampled_from(("nothing", "nothing", "start", "start", "release")))
        if residents and action == "start":
            chosen = data.draw(st.sampled_from(residents))
            host.start_container(chosen.uid, data.draw(st.sampled_from(chosen.all_containers)).name)
        elif residents and action == "release":
            host.release(data.draw(st.sampled_from(residents)).uid)


@settings(max_examples=examples(80))
@given(hosts(), st.data())
def test_a_restored_ledger_is_the_same(host, data):
    live(host, data)

    document = stored(host)
    again = restored(document, host)

    assert again.ledger == host.ledger
    assert list(again.ledger.pods) == list(host.ledger.pods), "in the order they came"
    assert stored(again) == document
    upcoming = data.draw(arrivals("next"))
    assert again.decide(upcoming) == host.decide(upcoming)
    for uid in host.ledger.pods:
        again.release(uid)
        host.release(uid)
        assert again.ledger == host.ledger


@settings(max_examples=examples(40))
@given(hosts(), st.data())
def test_plugins_that_register_again_complete_the_ledger(host, data):
    """Only held devices and the names of resources are stored."""
    bare = Host(replace(host.machine, devices=()), host.settings)
    plugged = {name: data.draw(devices(name, [node.id for node in host.machine.nodes])) for name in (GPU, NIC)}
    for resource, announced in plugged.items():
        bare.update_devices(resource, announced)
    live(bare, data)

    again = restored(stored(bare), bare)

    before, after = bare.ledger.devices, again.ledger.devices
    assert (after.held, after.in_use, after.reusable) == (before.held, before.in_use, before.reusable)
    assert after.handled == before.handled
    assert not any(after.free.values()), "nothing is allocated before the plugins register"
    for resource, announced in plugged.items():
        again.update_devices(resource, announced)
    assert again.ledger == bare.ledger


def test_a_resource_is_known_without_its_plugin():
    """A pod that requests it is rejected; a kubelet that forgot it would run the pod without the device."""
    host = make_host()
    again = ledger_of(stored(host), Host(replace(host.machine, devices=()), host.settings))

    decision = Host(replace(host.machine, devices=()), host.settings, ledger=again).decide(make_pod("late", gpu="1"))

    assert decision.rejection
    assert decision.rejection.message == (
        f"Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {GPU}, "
        "which is unexpected"
    )


def test_held_devices_keep_their_nodes():
    host = make_host()
    host.admit(make_pod("a", gpu="1"))

    (entry,) = stored(host)["pods"]
    ledger = ledger_of(stored(host), Host(replace(host.machine, devices=()), host.settings)).devices

    assert entry["devices"] == {"app": {GPU: {"gpu-0": "0"}}}
    assert ledger.inventories[GPU].devices == (Device(GPU, "gpu-0", nodes=1, healthy=False),)


def test_an_entry_is_readable():
    host = make_host()
    host.admit(make_pod("a", gpu="1"))

    assert json.loads(codec.encode(pod_entry(host.ledger, "a"))) == {
        "pod": {
            "name": "a",
            "namespace": "default",
            "uid": "a",
            "containers": [
                {
                    "name": "app",
                    "requests": {"cpu": "2", "memory": "1Gi", GPU: "1"},
                    "limits": {"cpu": "2", "memory": "1Gi", GPU: "1"},
                }
            ],
        },
        "hints": {"app": {"nodes": "0", "preferred": True}},
        "uses": {"milliCpu": 2000, "memory": GIB, "ephemeralStorage": 0, "scalars": {GPU: 1}},
        "cpus": {"containers": {"app": "1-2"}},
        "memory": {"containers": {"app": [{"nodes": "0", "type": "memory", "bytes": GIB}]}},
        "devices": {"app": {GPU: {"gpu-0": "0"}}},
    }


def test_entries_of_other_pods_do_not_change():
    host = make_host(Policy.BEST_EFFORT)
    host.admit(make_pod("a", gpu="1"))
    before = pod_entry(host.ledger, "a")

    host.admit(make_pod("b", cpu="3", memory="20Gi", nic="1"))

    assert pod_entry(host.ledger, "a") == before


def pod_level(uid: str, *, cpu: int, gibibytes: int, init: bool = False) -> Pod:
    """Return a pod with pod-level resources, one container with a part of them, and a helper on the rest."""
    resources = amounts({"cpu": str(cpu), "memory": f"{gibibytes}Gi"})
    app = guaranteed("app", {"cpu": str(max(1, cpu - 2)), "memory": "1Gi"})
    first = (guaranteed("first", {"cpu": "1", "memory": "1Gi"}),) if init else ()
    return Pod(
        name=uid, uid=uid, init=first, containers=(app, Container("helper")), resources=Resources(resources, resources)
    )


def pod_level_host(shape: str = "pack:2 numa:1 core:4 pu:1") -> Host:
    gates = FeatureGates({"PodLevelResourceManagers": True})
    return make_host(Policy.BEST_EFFORT, Scope.POD, gates=gates, shape=shape)


def test_a_pod_level_allocation_is_restored():
    """Its containers share it, and it is released with the pod."""
    host = pod_level_host()
    assert host.admit(pod_level("a", cpu=4, gibibytes=4)).admitted

    (entry,) = stored(host)["pods"]

    assert entry["cpus"] == {"pod": "4-7", "containers": {"app": "4-5", "helper": "6-7"}}
    assert entry["memory"]["pod"] == [{"nodes": "1", "type": "memory", "bytes": 4 * GIB}]
    assert conflicts(stored(host), pod_level_host(WITHOUT_SECOND)) == [
        "CPUs 4-5 of default/a (container app) no longer exist on this machine",
        "CPUs 6-7 of default/a (container helper) no longer exist on this machine",
        "CPUs 4-7 of default/a no longer exist on this machine",
        "memory of default/a is on NUMA node 1, which no longer exists on this machine",
    ]


requests = st.tuples(st.integers(2, 5), st.integers(2, 20), st.booleans())


@settings(max_examples=examples(40))
@given(st.lists(requests, min_size=1, max_size=4), st.integers(0, 4))
def test_restored_pod_level_allocations_are_the_same(asked, gone):
    host = pod_level_host("pack:3 numa:1 core:4 pu:1")
    for number, (cpu, gibibytes, init) in enumerate(asked):
        wanted = pod_level(f"u{number}", cpu=cpu, gibibytes=gibibytes, init=init)
        if host.admit(wanted).admitted and init:
            host.start_container(wanted.uid, "app")
    host.release(f"u{gone}")

    again = restored(stored(host), host)

    assert again.ledger == host.ledger
    for uid in host.ledger.pods:
        again.release(uid)
    assert again.ledger == pod_level_host("pack:3 numa:1 core:4 pu:1").ledger


def test_the_spread_of_memory_over_a_group_is_restored():
    """A pod overflows the first node; the next one is on the second node, and stays there after its release."""
    host = make_host(Policy.BEST_EFFORT)
    host.admit(make_pod("first", cpu="1", memory="18Gi"))
    host.admit(make_pod("other", cpu="1", memory="6Gi"))
    host.release("first")

    ledger = restored(stored(host), host).ledger.memory

    assert ledger == host.ledger.memory
    assert [node.tables["memory"].reserved for node in ledger.nodes.values()] == [0, 6 * GIB]


def shrunk(machine: Machine, by: int) -> Machine:
    """Return the machine with less memory on its first node."""
    first, *rest = machine.nodes
    return replace(machine, nodes=(replace(first, memory=(first.memory or 0) - by), *rest))


def test_a_machine_with_slightly_less_memory_keeps_its_pods():
    """Firmware and kernel use a different amount at each boot."""
    host = make_host(Policy.BEST_EFFORT)
    host.admit(make_pod("wide", cpu="1", memory="20Gi"))

    smaller = Host(shrunk(host.machine, 4096), host.settings)
    ledger = ledger_of(stored(host), smaller).memory

    first, second = (node.tables["memory"] for node in ledger.nodes.values())
    assert (first.free, first.reserved + second.reserved) == (0, 20 * GIB)


SMALLER = "pack:2 numa:1 core:1 pu:1"
WITHOUT_SECOND = "pack:1 numa:1 core:4 pu:1"


@pytest.mark.parametrize(
    ("now", "problems"),
    [
        pytest.param(
            make_host(shape=SMALLER),
            ["CPU 2 of default/a (container app) no longer exists on this machine"],
            id="a missing CPU",
        ),
        pytest.param(
            make_host(cpus=CpuSettings(policy="static", reservation=Quantity.parse("2"), explicit=bits.of([0, 1]))),
            ["CPU 1 of default/a (container app) is now reserved for the system"],
            id="a reserved CPU",
        ),
        pytest.param(
            make_host(cpus=CpuSettings()),
            ["CPUs 1-2 of default/a (container app) cannot be kept: this host does not allocate exclusive CPUs now"],
            id="no exclusive CPUs",
        ),
        pytest.param(
            make_host(memory=False),
            ["memory of default/a (container app) cannot be kept: this host does not allocate memory now"],
            id="no memory manager",
        ),
    ],
)
def test_each_holding_that_cannot_be_kept_is_named(now, problems):
    host = make_host()
    host.admit(make_pod("a"))

    assert conflicts(stored(host), now) == problems


def test_all_conflicts_are_reported_at_once():
    """The machine lost its second node, and most memory of the first."""
    host = make_host(Policy.BEST_EFFORT)
    host.admit(make_pod("a", memory="10Gi"))
    host.admit(make_pod("b", cpu="3", memory="12Gi", gpu="1"))
    machine = shrunk(parse(WITHOUT_SECOND, memory=16 * GIB), 12 * GIB)

    assert conflicts(stored(host), Host(machine, host.settings)) == [
        "CPUs 4-6 of default/b (container app) no longer exist on this machine",
        "memory of default/b (container app) is on NUMA node 1, which no longer exists on this machine",
    ]
    host.release("b")
    with pytest.raises(RestoreError) as caught:
        ledger_of(stored(host), Host(machine, host.settings))
    assert str(caught.value) == (
        f"memory on NUMA node 0 is too small for {10 * GIB} bytes of default/a (container app): "
        f"{10 * GIB} bytes are held there, but only {4 * GIB - (64 << 20)} exist"
    )


def test_the_other_pods_stay_without_the_conflicting_ones():
    """Of three pods on one node, the newest is released if only two fit."""
    host = make_host(Policy.BEST_EFFORT, shape="pack:1 numa:1 core:8 pu:1")
    for uid in ("a", "b", "c"):
        host.admit(make_pod(uid, memory="4Gi"))
    smaller = Host(shrunk(host.machine, 6 * GIB), host.settings)

    with pytest.raises(RestoreError) as caught:
        ledger_of(stored(host), smaller)
    ledger = ledger_of(without(stored(host), caught.value.uids), smaller)

    host.release("c")
    assert caught.value.uids == ("c",)
    assert ledger.cpus.held == host.ledger.cpus.held
    assert ledger.used == host.ledger.used
    assert Host(smaller.machine, host.settings, ledger=ledger).admit(make_pod("d", memory="1Gi")).admitted


def test_a_released_pod_leaves_nothing_to_reuse():
    """Otherwise it would get the resources of its init container without a request when it is admitted again."""
    host = make_host()
    asked = {"cpu": "2", "memory": "2Gi", GPU: "1"}
    waiting = Pod(name="a", uid="a", init=(guaranteed("first", asked),), containers=(guaranteed("app", asked),))
    prepared = replace(waiting, containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}),))
    assert host.admit(prepared).admitted

    again = restored(without(stored(host), {"a"}), host)

    assert again.ledger.cpus.reusable is None
    assert again.ledger == Host(host.machine, host.settings).ledger
    assert again.admit(waiting).placements == make_host().admit(waiting).placements


def test_a_missing_huge_page_size_is_named():
    host = make_host()
    host.admit(make_pod("a"))
    document = stored(host)
    document["pods"][0]["memory"]["containers"]["app"][0]["type"] = "hugepages-1Gi"

    with pytest.raises(RestoreError, match=r"hugepages-1Gi of default/a .* on NUMA node 0, which no longer has any"):
        ledger_of(document, make_host())


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        pytest.param("cpus", "CPUs 1-2 of default/b (container app) are also held by default/a", id="CPUs"),
        pytest.param("devices", f"{GPU} gpu-0 of default/b (container app) is also held by default/a", id="devices"),
    ],
)
def test_nothing_has_two_owners(kind, problem):
    host = make_host()
    for uid in ("a", "b"):
        host.admit(make_pod(uid, gpu="1"))
    document = stored(host)
    first, second = document["pods"]
    second[kind] = deepcopy(first[kind])

    assert problem in conflicts(document, make_host())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        pytest.param("pods", None, "pods: expected `array`, got `null`", id="pods that are not a list"),
        pytest.param("residue", [], "residue: expected `object`, got `array`", id="a residue that is a list"),
        pytest.param(
            "residue.cpus", {}, "residue.cpus: object missing required field `reusable`", id="a residue without a field"
        ),
        pytest.param("pods.0", {}, r"pods\[0\]: object missing required field `pod`", id="an entry without a pod"),
        pytest.param("pods.0.pod.uid", "", "has no uid", id="a pod without a uid"),
        pytest.param("pods.0.pod.uid", "b", "have the same uid", id="two pods with one uid"),
        pytest.param(
            "pods.0.pod.name", 7, r"pods\[0\].pod.name: expected `str`, got `int`", id="a name that is a number"
        ),
        pytest.param("pods.0.pod.qos", "High", r"pods\[0\].pod.qos: invalid enum value 'High'", id="an unknown class"),
        pytest.param(
            "pods.0.cpus.containers",
            {"other": "1"},
            "default/a has no container other",
            id="a container the pod does not have",
        ),
        pytest.param("pods.0.cpus.containers", {"app": "1-"}, "expected `str` matching regex", id="an invalid list"),
        pytest.param(
            "pods.0.cpus.pod",
            "3",
            "containers of default/a hold CPUs that the pod does not",
            id="containers outside their pod",
        ),
        pytest.param(
            "pods.0.memory.containers.app.0.nodes",
            "0-1",
            "node 0 can belong to one group only",
            id="groups of nodes that overlap",
        ),
        pytest.param("pods.0.uses.memory", -1, r"pods\[0\].uses.memory: expected `int` >= 0", id="a negative amount"),
        pytest.param("pods.0.hints.app.preferred", 1, "expected `bool`, got `int`", id="a flag"),
        pytest.param("pods.0.pod.priority", "high", "expected `int | null`, got `str`", id="a string as priority"),
        pytest.param("pods.0.pod.containers.0.limits.cpu", "2 CPUs", "quantities must match", id="an invalid quantity"),
        pytest.param(
            "residue.providers",
            {"cache": {}},
            "the ledger of cache is stored, but this host has no such provider",
            id="the ledger of an unknown provider",
        ),
    ],
)
def test_an_invalid_ledger_is_rejected(path, value, message):
    host = make_host()
    for uid in ("a", "b"):
        host.admit(make_pod(uid, cpu="1"))
    document: Any = stored(host)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    field = document
    for step in way:
        field = field[step]
    field[last] = value

    with pytest.raises((StateError, ParseError), match=message):
        ledger_of(document, make_host())


def test_a_ledger_is_restored_on_an_idle_one():
    host = make_host()
    host.admit(make_pod("a"))

    with pytest.raises(StateError, match="cannot restore a ledger on one that has pods"):
        ledger_of(stored(host), host)


def test_holdings_without_a_pod_are_an_error():
    host = make_host()
    host.admit(make_pod("a"))

    with pytest.raises(StateError, match="pods a hold resources but are not in the ledger"):
        check_holders(replace(host.ledger, pods={}))


AMOUNTS = ("1", "2000m", "1.5Gi", "1e3", "5n", "0", "-3", "1536Mi", "12E", "1e-3", "0.5", "1000000", "1e300", "3e2147")


@given(
    st.sampled_from(AMOUNTS) | st.from_regex(r"[0-9]{1,20}(\.[0-9]{1,12})?(m|k|Ki|Gi|E|e[0-9]{1,4})?", fullmatch=True)
)
def test_restored_amounts_have_the_same_form(text):
    """Equal amounts are not always interchangeable: 1.5Gi is rejected where 1536Mi is not."""
    try:
        amount = Quantity.parse(text)
    except QuantityError:
        return
    for each in (amount, amount + amount, amount.round_up_to_milli()):
        said = Pod(name="a", overhead={"cpu": each})

        (read,) = read_pod(codec.decode(codec.encode(pod_document(said)), PodDocument)).overhead.values()

        assert (read.unscaled, read.power, read.format) == (each.unscaled, each.power, each.format)
        assert (read.dec, read.text) == (each.dec, each.text)


def test_every_field_of_a_pod_is_stored():
    claimed = Resources(amounts({"cpu": "1"}), amounts({"cpu": "2"}), ("gpu",))
    full = Pod(
        name="a",
        namespace="",
        uid="u",
        init=(Container("first", claimed, restartable=True),),
        containers=(guaranteed("app", {"memory": "1.5Gi"}),),
        resources=claimed,
        overhead=amounts({"memory": "1Mi"}),
        claims=(PodClaim("gpu", template="gpu-of-node"), PodClaim("nic", "nic-7")),
        claimed_requests=(("app", "example.com/gpu"),),
        extended_claim="a-extended-resources-x7k2p",
        class_resources=("example.com/gpu",),
        recorded_qos=QoS.BURSTABLE,
        statuses={"app": ContainerStatus(amounts({"cpu": "1"}), {})},
        resize_infeasible=True,
        priority=0,
        os="linux",
        labels={"app": "web \U0001f600 \udcff"},
        annotations={"": "\x00"},
    )

    assert read_pod(codec.decode(codec.encode(pod_document(full)), PodDocument)) == full


Licenses = Mapping[str, int]


@dataclass(frozen=True)
class LicenseProvider(Provider[Licenses]):
    """A provider from outside this package: one license per pod."""

    count: int = 1
    name = "license"

    def initial_ledger(self) -> Licenses:
        return {}

    def hints(self, held: Licenses, pod: Pod, container: Container | None) -> None:
        return None

    def allocate(self, held: Licenses, pod: Pod, container: Container | None, *, affinity: Hint) -> Licenses:
        if len(held) == self.count:
            raise ProviderError("no license is free")
        return {**held, pod.uid: len(held)}

    def release(self, held: Licenses, uid: str) -> Licenses:
        return {pod: number for pod, number in held.items() if pod != uid}

    def describe(self, held: Licenses, uid: str, container: str) -> Mapping[str, str]:
        return {"license": str(held[uid])}


class StoredLicenseProvider(LicenseProvider):
    def to_json(self, held: Licenses) -> object:
        return dict(held)

    def from_json(self, document: object) -> Licenses:
        if not isinstance(document, dict) or len(document) > self.count:
            raise StateError("more licenses are held than there are")
        return document


def test_a_provider_from_outside_stores_its_ledger():
    host = make_host()
    joined = Host(host.machine, host.settings, others=[StoredLicenseProvider()])
    joined.admit(make_pod("a"))
    document = stored(joined)
    idle = Host(host.machine, host.settings, others=[StoredLicenseProvider()])

    assert document["residue"]["providers"] == {"license": {"a": 0}}
    assert ledger_of(document, idle, providers=idle.providers) == joined.ledger
    with pytest.raises(StateError, match="more licenses are held than there are"):
        ledger_of(document, idle, providers=[StoredLicenseProvider(count=0)])
    with pytest.raises(StateError, match="no provider can store the ledger of license"):
        residue(joined.ledger)


def test_a_provider_that_cannot_store_its_ledger_raises():
    """Even with nothing held: an agent fails when it starts, not when the first pod arrives."""
    host = make_host()
    joined = Host(host.machine, host.settings, others=[LicenseProvider()])

    with pytest.raises(StateError, match="the provider license cannot store its ledger"):
        residue(joined.ledger, providers=joined.providers)
    with pytest.raises(StateError, match="the provider license cannot store its ledger"):
        LicenseProvider().from_json({})


def test_a_new_provider_starts_idle():
    host = make_host()
    host.admit(make_pod("a"))
    idle = Host(host.machine, host.settings, others=[StoredLicenseProvider()])

    ledger = ledger_of(stored(host), idle, providers=idle.providers)

    assert ledger.others["license"] == {}
    assert ledger.pods == host.ledger.pods


@pytest.mark.parametrize("value", [3, True, "0", None, {"nodes": 0}])
def test_other_values_are_not_pods(value):
    with pytest.raises(ParseError):
        codec.convert(value, PodDocument)
