"""The cluster service and the observer of a node steer pods together, on real sockets."""

from dataclasses import replace

import pytest

from alignup.align.workload.names import NUMA_ANNOTATION
from alignup.kubernetes.api import Access, ApiClient, Timing
from alignup.schedule.extender.messages import BindingArgs
from alignup.schedule.service import ScheduleService
from alignup.testing.api_server import ApiServer
from tests.deadlines import SECONDS, until
from tests.grpc_fixtures import anyio_backend, one_loop
from tests.kubernetes.api.tasks import running
from tests.observe import api_objects
from tests.observe.steered_kubelet import (
    HOST,
    PATIENT,
    ClusterService,
    SteeredKubelet,
    marker_pod,
    steering_observer,
)
from tests.short_paths import short_directory

__all__ = ["anyio_backend", "one_loop"]

pytestmark = pytest.mark.anyio


class Together:
    """A node with its kubelet and observer, and the cluster service."""

    def __init__(self, server: ApiServer, kubelet: SteeredKubelet, service: ScheduleService) -> None:
        self.server, self.kubelet, self.service = server, kubelet, service
        self.instructions = ClusterService(server)
        self._published = 0

    async def publish(self) -> None:
        """Publish what the kubelet holds while all markers are there, and wait until the service has read it."""
        await until(lambda: self.kubelet.at_rest)
        self._published += 1
        state = self.kubelet.host_state(HOST)
        self.server.put({**state, "generation": self._published})
        live = self.service.live
        await until(lambda: (record := live.cluster.record(HOST)) and record.report.sequence == self._published)

    async def bind(self, pod):
        self.server.put(api_objects.api_pod(pod, phase="Pending"))
        await until(lambda: self.service.live.find_pod("default", pod.name))
        args = BindingArgs(pod_name=pod.name, pod_namespace="default", pod_uid=pod.uid, node=HOST)
        return (await self.service.bind.respond(args)).error

    async def end(self, pod) -> None:
        self.server.remove("pods", pod.name)
        self.kubelet.end(pod.uid)
        self.kubelet.remove_ended()
        self.kubelet.write(self.kubelet.directory)

    def counted(self, outcome):
        registry = self.service.metrics.registry
        return registry.get_sample_value("alignup_steering_pods_total", {"outcome": outcome})


@pytest.fixture
async def together(anyio_backend):
    timing = Timing(retry=0.01, longest_retry=0.02, attempts=1)
    with short_directory() as directory:
        kubelet = SteeredKubelet(directory)
        await kubelet.start()
        async with ApiServer() as server:
            for resource in (api_objects.SERVED, api_objects.STEERING):
                server.serve(resource)
            server.put(api_objects.node(HOST))
            async with (
                ApiClient(Access(server=server.url, source="the test"), timing=timing) as client,
                steering_observer(kubelet, client, PATIENT),
                running() as follow,
            ):
                service = ScheduleService(client)
                service.live.scheduling.steering.ready_seconds = service.steering.write_seconds = SECONDS
                follow(service.run())
                made = Together(server, kubelet, service)
                await until(lambda: service.leading and service.live.steering_instructions.get(HOST))
                await made.publish()
                yield made
        await kubelet.stop()


async def test_every_pod_goes_to_the_wanted_numa_node(together):
    """Against the kubelet's order; each pod ends after its admission."""
    for number in range(12):
        wanted = (number + 1) % 2
        pod = replace(marker_pod(f"pod-{number}", cpu="2"), annotations={NUMA_ANNOTATION: str(wanted)})

        assert await together.bind(pod) == ""

        assert await together.kubelet.admit_pod(pod) == wanted
        await until(lambda: together.instructions.object["status"]["phase"] == "Done")
        await together.publish()
        assert pod.uid in together.service.live.cluster.record(HOST).ledger.pods
        await together.end(pod)
        await together.publish()

    assert together.kubelet.rejected == []
    assert together.counted("ready") == 12
    assert together.service.metrics.predictions.totals == {"as_predicted": 12}


async def test_packed_pods_fill_one_numa_node_before_the_other(together):
    """Two pods of 2 CPUs on NUMA node 1, which has 4, leave 3 CPUs on node 0 for a third."""
    pods = [marker_pod(f"pod-{number}", cpu=cpu) for number, cpu in enumerate(("2", "2", "3"))]
    pods[0] = replace(pods[0], annotations={NUMA_ANNOTATION: "1"})
    nodes = []
    for pod in pods:
        assert await together.bind(pod) == ""
        nodes.append(await together.kubelet.admit_pod(pod))
        await together.publish()
    assert nodes == [1, 1, 0]
