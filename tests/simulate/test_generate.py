import hashlib
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import SettingsError
from alignup.align.host import Host, Settings
from alignup.align.machine import Device, HugePages, NumaNode
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, TopologySettings
from alignup.align.workload import QoS
from alignup.machines.synthetic import parse
from alignup.simulate.arrivals import PodArrival, PodDeparture, ordered
from alignup.simulate.generate import DAY, HOUR, MINUTE, POD_KINDS, MachineCapacity, PodKind, Profile, generate
from alignup.simulate.node_simulation import run
from alignup.simulate.trace import read, write
from tests.align.hosts import GPU, NIC, hosts
from tests.simulate.workloads import some
from tests.strategies import machines

GIB = 1 << 30
PAGE = Path(__file__).parents[2] / "docs" / "simulate-data.md"


def large():
    """Two sockets with two NUMA nodes each; per node 32 CPUs, 128 GiB (16 in huge pages), 2 GPUs and 8 NICs."""
    shape = parse("pack:2 numa:2 core:16 pu:2", memory=128 * GIB)
    nodes = tuple(NumaNode(node.id, node.memory, (HugePages(GIB, 16),)) for node in shape.nodes)
    gpus = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number // 2) for number in range(8))
    nics = tuple(Device(NIC, f"nic-{number}", nodes=1 << number // 8) for number in range(32))
    return replace(shape, nodes=nodes, devices=gpus + nics)


LARGE = large()


def pods(events):
    return [event.pod for event in events if isinstance(event, PodArrival)]


@pytest.mark.parametrize("profile", Profile)
def test_every_kind_of_a_profile_arrives(profile):
    came = {pod.labels["app"] for pod in pods(generate(profile, LARGE, seed=1, pods=300))}

    assert came == {kind.name for kind in POD_KINDS[profile]}


@pytest.mark.parametrize("profile", Profile)
def test_the_same_seed_gives_the_same_workload(profile):
    first = generate(profile, LARGE, seed=7, pods=50)

    assert generate(profile, LARGE, seed=7, pods=50) == first
    assert generate(profile, LARGE, seed=8, pods=50) != first


def test_workloads_are_the_same_on_every_python():
    """The workload of a seed must never change."""
    drawn = [
        (event.time, event.uid)
        if isinstance(event, PodDeparture)
        else (event.time, event.pod.uid, sorted(map(str, event.pod.containers[0].resources.limits.values())))
        for event in generate(Profile.MIXED, LARGE, seed=1, pods=100)
    ]

    assert drawn[0] == (2914.678, "du-1", ["1", "16Gi", "1Gi", "8"])
    assert hashlib.sha256(repr(drawn).encode()).hexdigest()[:16] == "f1569c0c82ec2aa3"


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize("load", [0.5, 1.0, 2.0])
def test_the_load_is_as_requested(profile, load):
    """Of the scarcest resource, on average over the time of arrivals; gaps are random, so only roughly."""
    events = generate(profile, LARGE, seed=1, pods=2000, load=load)
    left = {event.uid: event.time for event in events if isinstance(event, PodDeparture)}
    capacity = MachineCapacity.of(LARGE)
    work = dict.fromkeys(("cpu", "memory", GPU, NIC), 0.0)
    for event in events:
        if isinstance(event, PodArrival):
            for name in work:
                asked = sum(
                    container.resources.requests[name].milli() / 1000
                    for container in event.pod.containers
                    if name in container.resources.requests
                )
                work[name] += asked * (left[event.pod.uid] - event.time)
    span = max(event.time for event in events if isinstance(event, PodArrival))
    there = {"cpu": capacity.cpus, "memory": capacity.memory, GPU: capacity.accelerators, NIC: capacity.networks}

    busiest = max(work[name] / there[name] / span for name in work)

    assert busiest == pytest.approx(load, rel=0.1)


@pytest.mark.parametrize(
    ("name", "qos", "resources"),
    [
        pytest.param("upf", QoS.GUARANTEED, {"cpu", "memory", NIC, "hugepages-1Gi"}, id="user plane"),
        pytest.param("oam", QoS.BURSTABLE, {"cpu", "memory"}, id="management"),
        pytest.param("trainer", QoS.GUARANTEED, {"cpu", "memory", GPU, NIC}, id="training"),
        pytest.param("model", QoS.GUARANTEED, {"cpu", "memory", GPU}, id="inference"),
    ],
)
def test_pods_request_what_their_kind_defines(name, qos, resources):
    of_kind = [pod for pod in pods(generate(Profile.MIXED, LARGE, seed=2, pods=400)) if pod.labels["app"] == name]

    assert of_kind
    assert {pod.qos for pod in of_kind} == {qos}
    assert {frozenset(pod.containers[0].resources.requests) for pod in of_kind} == {frozenset(resources)}


def test_a_machine_without_devices_gets_pods_without_device_requests():
    plain = replace(LARGE, devices=())

    for profile in Profile:
        asked = {
            name
            for pod in pods(generate(profile, plain, seed=1, pods=100))
            for name in pod.containers[0].resources.limits
        }
        assert asked <= {"cpu", "memory", "hugepages-1Gi"}


def test_resources_can_be_named():
    odd = replace(LARGE, devices=tuple(Device("kubernetes.example/thing", str(number), nodes=1) for number in range(4)))

    assert MachineCapacity.of(odd).accelerator is None
    assert MachineCapacity.of(odd).network is None
    named = pods(generate(Profile.TRAINING, odd, seed=1, pods=50, accelerator="kubernetes.example/thing"))
    assert any("kubernetes.example/thing" in pod.containers[0].resources.limits for pod in named)


@pytest.mark.parametrize("wrong", [{"load": 0.0}, {"load": -1.0}, {"load": float("nan")}, {"pods": -1}])
def test_invalid_loads_are_rejected(wrong):
    with pytest.raises(SettingsError, match="invalid load"):
        generate(Profile.TELCO, LARGE, seed=1, **wrong)


def test_zero_pods_give_no_events():
    assert generate(Profile.TELCO, LARGE, seed=1, pods=0) == ()


@some
@given(machines(max_nodes=4), st.sampled_from(Profile), st.integers())
def test_every_machine_gets_a_consistent_workload(machine, profile, seed):
    events = generate(profile, machine, seed=seed, pods=20)

    assert ordered(events) == events
    assert len(pods(events)) == 20
    assert all(pod.qos is not QoS.BEST_EFFORT for pod in pods(events))


@some
@given(hosts(), st.sampled_from(Profile), st.integers(0, 99))
def test_generated_workloads_can_be_simulated_and_saved(kubelet, profile, seed):
    events = generate(profile, kubelet.machine, seed=seed, pods=10)
    text = io.StringIO()
    write(events, text)

    result = run(kubelet, events)

    assert len(result.outcomes) == 10
    assert not kubelet.ledger.pods
    assert read(text.getvalue()) == events


def test_most_pods_of_a_moderate_load_are_admitted():
    cpus = CpuSettings(policy="static", reservation=Quantity.parse("2"))
    kubelet = Host(LARGE, Settings(topology=TopologySettings(policy=Policy.BEST_EFFORT), cpus=cpus))

    result = run(kubelet, generate(Profile.TELCO, LARGE, seed=1, pods=300, load=0.5))

    assert result.admitted > 0.95 * 300


@pytest.mark.parametrize("profile", Profile)
def test_lifetimes_match_the_tables(profile):
    events = generate(profile, LARGE, seed=5, pods=1500)
    left = {event.uid: event.time for event in events if isinstance(event, PodDeparture)}
    for kind in POD_KINDS[profile]:
        stays = [
            left[event.pod.uid] - event.time
            for event in events
            if isinstance(event, PodArrival) and event.pod.labels["app"] == kind.name
        ]
        if isinstance(kind.lifetime, tuple):
            low, high = kind.lifetime
            assert low * 0.99 <= min(stays)
            assert max(stays) <= high * 1.01
        else:
            assert sum(stays) / len(stays) == pytest.approx(kind.lifetime, rel=0.35)


def duration(seconds: float) -> str:
    unit, size = next((unit, size) for unit, size in (("d", DAY), ("h", HOUR), ("min", MINUTE)) if seconds >= size)
    return f"{seconds / size:g} {unit}"


def row(profile: Profile, kind: PodKind) -> str:
    """The row of a kind in docs/simulate-data.md."""
    asks = "accelerators" if kind.accelerators else "CPUs"
    amounts = ", ".join(map("{:g}".format, kind.accelerators or kind.cpus))
    extras = {
        f"{kind.huge} GiB of huge pages": kind.huge,
        f"{kind.networks} network device" + "s" * (kind.networks > 1): kind.networks,
        "init container": kind.setup,
        "sidecar": kind.sidecar,
        "Burstable": not kind.guaranteed,
    }
    if isinstance(kind.lifetime, tuple):
        lifetime = f"log-uniform, {' to '.join(map(duration, kind.lifetime))}"
    else:
        lifetime = f"exponential, mean {duration(kind.lifetime)}"
    cells = (
        profile,
        kind.name,
        kind.weight,
        f"{asks}: {amounts}",
        "" if kind.accelerators else kind.memory,
        ", ".join(name for name, there in extras.items() if there),
        lifetime,
    )
    return "| " + " | ".join(map(str, cells)) + " |"


@pytest.mark.parametrize("profile", [Profile.TELCO, Profile.TRAINING, Profile.INFERENCE, Profile.GANGS])
def test_the_documentation_has_the_tables(profile):
    page = PAGE.read_text(encoding="utf-8").splitlines()

    assert [line for line in page if line.startswith(f"| {profile} |")] == [
        row(profile, kind) for kind in POD_KINDS[profile]
    ]


def test_mixed_is_a_third_of_each_profile():
    weights = [sum(kind.weight for kind in POD_KINDS[profile]) for profile in Profile]

    assert weights == [10, 10, 10, 30, 10]
