"""Steering with a kubelet and an API server on real sockets."""

import asyncio
import random
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from alignup.align.machine import Device
from alignup.documents.steering import MARKER_RESOURCE, SteeringPhase
from alignup.kubernetes.api import Access, ApiClient, Timing
from alignup.kubernetes.plugins.pod_resources import ListedResources
from alignup.machines import machine_source
from alignup.machines.synthetic import parse
from alignup.observe.marker_steering import make_markers
from alignup.observe.observation import join
from alignup.observe.published_objects import host_state
from alignup.observe.service import observe
from alignup.testing.api_server import ApiFault, ApiServer
from tests.deadlines import until
from tests.effort import SEED, did, rounds
from tests.grpc_fixtures import anyio_backend, one_loop
from tests.observe import api_objects
from tests.observe.kubelets import ObservedKubelet
from tests.observe.observed_machine import observe_once
from tests.observe.steered_kubelet import HOST, PATIENT, ClusterService, SteeredKubelet, marker_pod, steering_observer
from tests.short_paths import short_directory
from tests.strategies_pods import container

if TYPE_CHECKING:
    from alignup.align.workload import Pod

__all__ = ["anyio_backend", "one_loop"]

pytestmark = pytest.mark.anyio

UNMANAGED = {
    "topologyManagerPolicy": "none",
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
    "reservedMemory": None,
}
ONE_MARKER = {MARKER_RESOURCE: "1"}
CUT = ApiFault(disconnect=True, times=None)


@pytest.fixture
async def server(anyio_backend):
    async with ApiServer() as made:
        yield made


@pytest.fixture
async def client(server):
    timing = Timing(retry=0.01, longest_retry=0.02, attempts=1)
    async with ApiClient(Access(server=server.url, source="the test"), timing=timing) as made:
        yield made


@pytest.fixture
def service(server):
    return ClusterService(server)


@pytest.fixture
async def kubelet(anyio_backend):
    with short_directory() as directory:
        made = SteeredKubelet(directory)
        await made.start()
        yield made
        await made.stop()


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
async def observer(service, kubelet, client, registry):
    """Return a function that runs steering until the end of the test, beside a kubelet that knows the markers."""
    async with AsyncExitStack() as stack:

        async def start(**timing):
            running = steering_observer(kubelet, client, replace(PATIENT, **timing), registry=registry)
            steering = await stack.enter_async_context(running)
            await until(lambda: kubelet.at_rest)
            return steering

        yield start


def test_every_numa_node_with_cpus_has_as_many_markers_as_the_node_may_have_pods():
    kubelet = ObservedKubelet(shape="pack:2 numa:1 core:4 pu:1", maxPods=250)
    markers = make_markers(kubelet.machine, kubelet.configuration)

    assert [sum(marker.nodes == 1 << node for marker in markers) for node in range(2)] == [250, 250]
    assert len({marker.id for marker in markers}) == 500
    assert markers[257].id == "numa-1-007"
    few = ObservedKubelet(maxPods=10)
    assert len(make_markers(few.machine, few.configuration)) == 2 * 110
    assert len(make_markers(parse("pack:8 numa:1 core:1 pu:1"), None)) == 8 * 110


async def steer(service, name, nodes, phase):
    """Give an instruction for a pod, and wait until the observer is in a phase of it; return its generation."""
    generation = service.instruct(marker_pod(name), nodes)
    await service.reached(generation, phase)
    return generation


def count(registry, phase):
    return registry.get_sample_value("alignup_observer_steering_instructions_total", {"phase": phase})


async def test_a_pod_goes_to_the_numa_node_of_its_instruction(observer, kubelet, service, registry):
    await observer()

    for number, node in enumerate((1, 0, 1)):  # the kubelet itself would fill NUMA node 0 first
        pod = marker_pod(f"pod-{number}")
        generation = service.instruct(pod, str(node))
        await service.reached(generation, "Ready")
        assert kubelet.healthy == {node: 110, 1 - node: 0}
        assert await kubelet.admit_pod(pod) == node
        await service.reached(generation, "Done")
        assert kubelet.at_rest

    assert [count(registry, phase) for phase in SteeringPhase] == [3, 3, 0, 0]
    assert registry.get_sample_value("alignup_observer_steering_withdrawn_markers") == 0
    assert registry.get_sample_value("alignup_observer_steering_ready_seconds_count") == 3
    assert registry.get_sample_value("alignup_observer_steering_registrations_total", {"result": "ok"}) == 1
    assert kubelet.rejected == []


async def test_without_steering_the_kubelet_takes_the_lowest_numa_node(observer, kubelet):
    await observer()

    assert [await kubelet.admit_pod(marker_pod(f"pod-{number}")) for number in range(4)] == [0, 0, 0, 1]


async def test_markers_stay_withdrawn_until_every_container_has_its_own(observer, kubelet, service):
    steering = await observer()
    pod = marker_pod("two", containers=2)
    generation = service.instruct(pod, "1", containers=3)  # one more than the pod has
    await service.reached(generation, "Ready")

    await kubelet.admit_pod(pod)
    await until(lambda: steering.holdings.read() == {"two": 2})
    assert kubelet.healthy == {0: 0, 1: 110}

    service.instruct(None)
    await until(lambda: kubelet.at_rest)


async def test_markers_that_pods_hold_are_withdrawn_as_well(observer, kubelet, service):
    """Else the marker of a pod that ends before the admission would be a second choice."""
    await observer()
    await kubelet.admit_pod(marker_pod("old"))
    await steer(service, "new", "1", "Ready")

    assert kubelet.healthy == {0: 0, 1: 110}


async def test_markers_of_several_numa_nodes_can_stay(observer, kubelet, service):
    await observer()
    await steer(service, "any", "0-1", "Ready")

    assert kubelet.at_rest


async def test_a_pod_that_does_not_come_expires(observer, kubelet, service):
    await observer(hold=0.05)
    await steer(service, "late", "1", "Expired")

    assert kubelet.at_rest
    assert service.message == "the pod was not admitted within 0.05 s"
    assert await kubelet.admit_pod(marker_pod("late")) == 0


async def test_a_pod_that_is_rejected_ends_the_steering(observer, kubelet, service):
    await observer()
    await kubelet.admit_pod(marker_pod("large", cpu="4"))
    generation = await steer(service, "any", "1", "Ready")
    await kubelet.admit_pod(marker_pod("any"))
    await service.reached(generation, "Failed")

    assert kubelet.rejected == ["TopologyAffinityError"]  # the service does not steer to a full node
    assert kubelet.at_rest


async def test_an_instruction_fails_that_the_kubelet_does_not_follow(observer, kubelet, service):
    await observer(confirm=0.05)
    kubelet.host.update_devices = lambda *_: None  # it is busy
    await steer(service, "any", "1", "Failed")

    assert service.message == "the kubelet has not noticed within 0.05 s that markers changed"


@pytest.mark.parametrize("nodes", ["7", "0-7"])
async def test_an_instruction_for_numa_nodes_without_markers_fails(observer, service, nodes):
    await observer()
    await steer(service, "any", nodes, "Failed")

    assert service.message == f"NUMA nodes {nodes} are wanted, and markers are on 0-1"


async def test_markers_are_restored_when_the_instruction_is_taken_back(observer, kubelet, service, registry):
    await observer()
    await steer(service, "any", "1", "Ready")
    service.instruct(None)
    await until(lambda: kubelet.at_rest)

    await steer(service, "other", "1", "Ready")
    service.server.remove("steeringinstructions", "host-a", namespace="")
    await until(lambda: kubelet.at_rest)
    await until(lambda: count(registry, "Replaced") == 2)


async def test_the_observer_creates_the_object_of_its_node_and_again_when_it_is_deleted(observer, service):
    """Without instructions: those are of the cluster service, which has no right to create objects."""
    await observer()
    await until(lambda: service.object)
    created = service.object
    assert (created["metadata"]["name"], "spec" in created) == ("host-a", False)

    service.server.remove("steeringinstructions", "host-a", namespace="")
    await until(lambda: service.object and service.object["metadata"]["uid"] != created["metadata"]["uid"])
    await steer(service, "any", "1", "Ready")


async def test_an_object_that_cannot_be_created_is_tried_again(observer, service):
    fault = ApiFault(status=403, message="forbidden", times=2)
    service.server.inject(fault, verb="create", resource="steeringinstructions")
    await observer()
    await until(lambda: service.object)


async def test_a_newer_instruction_replaces_one_that_is_carried_out(observer, kubelet, service):
    await observer()
    first = service.instruct(marker_pod("first"), "1")
    await service.reached(first, "Ready")
    second = service.instruct(marker_pod("second"), "0")
    await service.reached(second, "Ready")

    assert kubelet.healthy == {0: 110, 1: 0}
    assert await kubelet.admit_pod(marker_pod("second")) == 0


async def test_markers_are_restored_when_the_api_server_cannot_be_reached(observer, kubelet, service, server):
    await observer()
    generation = await steer(service, "any", "1", "Ready")
    server.inject(CUT)
    server.disconnect()
    await until(lambda: kubelet.at_rest)

    server.inject(ApiFault(times=0))
    await service.reached(generation, "Failed")
    assert "the connection to the API server was lost" in service.message


async def test_markers_are_restored_when_ready_cannot_be_reported(observer, kubelet, service, server):
    steering = await observer()
    server.inject(ApiFault(status=403, reason="Forbidden", times=None), verb="patch")
    generation = service.instruct(marker_pod("any"), "1")
    await until(lambda: steering.markers.withdrawals == 1 and kubelet.at_rest)

    assert service.phase(generation) == ""


async def test_a_kubelet_that_restarts_ends_the_steering_and_gets_all_markers(observer, kubelet, service):
    await observer()
    generation = await steer(service, "any", "1", "Ready")
    await kubelet.restart()
    await until(lambda: kubelet.at_rest)
    await service.reached(generation, "Failed")

    await steer(service, "next", "1", "Ready")
    assert await kubelet.admit_pod(marker_pod("next")) == 1


async def test_no_marker_is_withdrawn_while_another_pod_with_markers_is_admitted(observer, kubelet, service):
    steering = await observer(confirm=0.05)
    kubelet.bound(marker_pod("other"))
    await steer(service, "any", "1", "Failed")

    assert service.message == "pod default/other is bound, and not admitted yet"
    assert steering.markers.withdrawals == 0
    kubelet.bound(replace(marker_pod("plain"), containers=()))  # requests no markers
    await kubelet.admit_pod(marker_pod("other"))
    await steer(service, "next", "1", "Ready")


async def test_markers_are_restored_for_another_pod_with_markers(observer, kubelet, service):
    """Else it would go to the NUMA node of the steered pod, or be rejected where that is full."""
    steering = await observer()
    await kubelet.admit_pod(marker_pod("large", cpu="3"))  # fills NUMA node 0
    generation = await steer(service, "any", "0", "Ready")
    kubelet.bound(marker_pod("other"))
    steering.notify()
    await service.reached(generation, "Failed")

    assert service.message == "pod default/other, which requests markers as well, was bound"
    assert await kubelet.admit_pod(marker_pod("other")) == 1


@pytest.mark.parametrize("phase", ["Done", "Expired", "Failed"])
async def test_an_instruction_that_was_answered_is_not_carried_out_again(observer, service, server, phase):
    generation = service.instruct(marker_pod("any"), "1")
    server.put({**service.object, "status": {"observedGeneration": generation, "phase": phase}})
    steering = await observer()
    await steer(service, "next", "1", "Ready")

    assert steering.markers.withdrawals == 1


async def test_a_new_observer_does_not_repeat_what_the_last_one_began(observer, service, server):
    generation = service.instruct(marker_pod("any"), "1")
    server.put({**service.object, "status": {"observedGeneration": generation, "phase": "Ready"}})
    steering = await observer()
    await service.reached(generation, "Failed")

    assert service.message == "the observer was restarted before the pod came"
    assert steering.markers.withdrawals == 0


async def test_an_instruction_for_a_pod_that_holds_its_markers_is_done(observer, kubelet, service):
    steering = await observer()
    await kubelet.admit_pod(marker_pod("any"))
    await steer(service, "any", "1", "Done")

    assert steering.markers.withdrawals == 0


async def test_an_observer_that_stops_restores_the_markers_first(kubelet, service, client):
    healthy = []
    async with steering_observer(kubelet, client, PATIENT) as steering:
        await until(lambda: kubelet.at_rest)
        generation = service.instruct(marker_pod("any"), "1")
        await service.reached(generation, "Ready")
        set_devices = steering.markers.plugin.set_devices

        def record(devices):
            listed = tuple(devices)
            healthy.append([device.healthy for device in listed])
            set_devices(listed)

        steering.markers.plugin.set_devices = record

    assert healthy == [[True] * 220]
    await until(lambda: kubelet.healthy == {0: 0, 1: 0})  # as for every plugin that has stopped


async def test_steering_goes_on_after_an_error_of_its_own(observer, kubelet, service):
    steering = await observer()
    read = steering.holdings.read
    steering.holdings.read = lambda: 1 / 0
    with capture_logs() as logs:
        service.instruct(marker_pod("any"), "1")
        await until(lambda: any(log["event"] == "steering failed" for log in logs))
    steering.holdings.read = read
    assert kubelet.at_rest

    await steer(service, "next", "1", "Ready")


# What is published


async def test_the_host_state_stays_as_at_rest_while_markers_are_withdrawn(observer, kubelet, service):
    steering = await observer()
    markers = steering.markers

    def published(since):
        allocatable = markers.at_rest(kubelet.allocatable, since=since)
        return host_state(join(kubelet.sources(allocatable=allocatable)))

    before = published(markers.withdrawals)
    assert [group.markers for group in before.ledger.devices] == ["0-109", "0-109"]
    assert all(group.healthy for group in before.ledger.devices)
    await steer(service, "any", "1", "Ready")
    assert published(markers.withdrawals) == before
    assert published(markers.withdrawals).problems == []

    withdrawn, asked = kubelet.allocatable, markers.withdrawals - 1
    service.instruct(None)
    await until(lambda: kubelet.at_rest)
    assert markers.at_rest(withdrawn, since=asked) == kubelet.allocatable  # asked before, answered meanwhile
    await until(lambda: markers.at_rest(withdrawn, since=markers.withdrawals) == withdrawn)  # the truth


async def test_markers_that_the_kubelet_lost_are_published_as_such(observer, service):
    steering = await observer()
    gpu = Device("example.com/gpu", "gpu-0", nodes=1)
    nothing = ListedResources(devices=(gpu,))
    await steer(service, "any", "1", "Ready")

    assert steering.markers.at_rest(nothing, since=0) == nothing


async def test_the_observer_steers_and_publishes(server, service):
    """The whole program, on this machine, beside a kubelet with its sockets."""
    server.serve(api_objects.SERVED)
    server.put(api_objects.node(HOST))
    machine = replace(machine_source.discover(), devices=())
    nodes = [node for node, cpus in machine.kubelet_view().node_cpus.items() if cpus]
    with short_directory() as parent:
        options = replace(observe_once(parent / "k"), once=False, steer=PATIENT)
        kubelet = SteeredKubelet(parent / "k", machine=machine, **UNMANAGED)
        await kubelet.start()
        task = asyncio.create_task(observe(Access(server=server.url), options))

        def published():
            (state,) = server.objects("hoststates") or [{}]
            groups = state.get("ledger", {}).get("devices", ())
            return [(group["nodes"], group["markers"], group.get("healthy", True)) for group in groups]

        await until(lambda: published() == [(str(node), "0-109", True) for node in nodes])
        generation = service.instruct(marker_pod("any"), str(nodes[0]))
        await service.reached(generation, "Ready")
        await kubelet.admit_pod(replace(marker_pod("any"), containers=(container("app", ONE_MARKER, ONE_MARKER),)))
        await service.reached(generation, "Done")
        task.cancel()
        await asyncio.wait([task])
        await kubelet.stop()


async def test_an_observer_that_is_killed_comes_back_with_all_markers(server, service):
    """As a process, which can restore nothing when it is killed; the kubelet notices the end of its connection."""
    server.serve(api_objects.SERVED)
    server.put(api_objects.node(HOST))
    machine = replace(machine_source.discover(), devices=())
    (node, *_) = [node for node, cpus in machine.kubelet_view().node_cpus.items() if cpus]
    with short_directory() as parent:
        observe_once(parent / "k")
        kubelet = SteeredKubelet(parent / "k", machine=machine, **UNMANAGED)
        await kubelet.start()
        server.write_kubeconfig(parent / "access")
        words = ["observe", "--steer", "--node", HOST, "--kubeconfig", str(parent / "access"), "--no-configz"]
        command = [sys.executable, "-m", "alignup", *words, "--kubelet-dir", str(parent / "k")]
        for number in range(2):
            process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
            await until(lambda: kubelet.healthy.get(node) == 110)
            generation = service.instruct(marker_pod(f"pod-{number}"), str(node))
            await service.reached(generation, "Ready")
            process.kill()
            await process.wait()
            await until(lambda: kubelet.healthy[node] == 0)
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
        await service.reached(generation, "Failed")
        await until(lambda: kubelet.healthy[node] == 110)
        assert len([*parent.glob("k/device-plugins/alignup.dev_numa-*.sock")]) == 1
        process.terminate()
        assert await process.wait() == 0
        await kubelet.stop()


# Everything at once


@pytest.mark.soak
async def test_markers_return_whatever_happens_and_nothing_is_steered_twice(server, client, service):
    count = rounds(12, soak=500)
    for number in range(count):
        await Interleaving(server, client, service, random.Random(SEED * 1000 + number)).run()
    did("steering interleavings", count)


class Interleaving:
    """Instructions, admissions and faults in a random order."""

    def __init__(self, server, client, service, choices):
        self.server, self.client, self.service, self.random = server, client, service, choices
        self.pods = 0
        self.instructed: tuple[int, int, Pod] | None = None  #: generation, NUMA node, pod
        self.wrong: list[str] = []

    async def run(self):
        steps = (self.instruct, self.bind, self.foreign, self.restart_kubelet, self.cut, self.restart, self.take_back)
        with short_directory() as directory, capture_logs() as logs:
            self.kubelet = SteeredKubelet(directory, shape="pack:2 numa:1 core:32 pu:1")
            await self.kubelet.start()
            async with AsyncExitStack() as self.stack:
                await self.restart()
                for step in self.random.choices(steps, weights=(6, 6, 1, 1, 1, 1, 1), k=12):
                    await step()
                self.service.instruct(None)
                await until(lambda: self.kubelet.at_rest)
            await self.kubelet.stop()
        ready = [log["generation"] for log in logs if log["event"] == "steering" and log["phase"] == "Ready"]
        assert len(ready) == len({*ready})
        assert self.kubelet.rejected == []
        assert self.wrong == []
        assert not [log for log in logs if log["event"] == "steering failed"]

    async def instruct(self):
        self.pods += 1
        pod, node = marker_pod(f"pod-{self.pods}"), self.random.randrange(2)
        generation = self.service.instruct(pod, str(node))
        self.instructed = generation, node, pod
        if self.random.random() < 0.8:
            await until(lambda: self.service.phase(generation))

    async def bind(self):
        if self.instructed is None:
            return
        generation, node, pod = self.instructed
        self.instructed = None
        ready = self.service.phase(generation) == "Ready" and self.kubelet.healthy == {node: 110, 1 - node: 0}
        if not any(self.kubelet.healthy.values()):
            return  # no plugin, no markers: a service that waits for Ready does not bind
        actual = await self.kubelet.admit_pod(pod)
        if ready and actual != node:
            self.wrong.append(f"{pod.uid} is on NUMA node {actual} instead of {node}")
        if ready and self.random.random() < 0.8:
            await self.service.reached(generation, "Done", "Failed")

    async def foreign(self):
        """Bind a pod that another scheduler has placed."""
        self.pods += 1
        pod = marker_pod(f"pod-{self.pods}")
        self.kubelet.bound(pod)
        self.steering.notify()
        await until(lambda: self.kubelet.at_rest)
        await self.kubelet.admit_pod(pod)

    async def restart_kubelet(self):
        await self.kubelet.restart()
        if self.random.random() < 0.7:
            await until(lambda: self.kubelet.at_rest)

    async def cut(self):
        self.server.inject(CUT)
        self.server.disconnect()
        await until(lambda: self.kubelet.at_rest)
        self.server.inject(ApiFault(times=0))

    async def restart(self):
        """Stop the observer, and start another."""
        await self.stack.aclose()
        await until(lambda: not any(self.kubelet.healthy.values()))
        self.steering = await self.stack.enter_async_context(steering_observer(self.kubelet, self.client, PATIENT))
        if self.random.random() < 0.7:
            await until(lambda: self.kubelet.at_rest)

    async def take_back(self):
        self.service.instruct(None)
        self.instructed = None
        await asyncio.sleep(0)
