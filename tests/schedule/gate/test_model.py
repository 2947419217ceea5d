"""The gate controller through random events: whatever happens, no kubelet rejects a pod that it released.

Pods are created, end and are deleted; nodes become unschedulable; observers are late; responses of the API server are
lost, or pods change under the controller; the leader changes. In the end no pod waits that a node could run, unless the
node is kept for a pod that has waited longer.
"""

from random import Random

import pytest

from alignup.documents.codec import convert
from alignup.kubernetes.api import NODES
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.gate.controller import GateController
from alignup.schedule.node_selection import exclusions
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.effort import SEED, did, rounds
from tests.schedule.gate.simulated import settle

pytestmark = pytest.mark.anyio


class RandomEvents:
    def __init__(self, cluster, clock, lead):
        self.random = Random(SEED)
        self.cluster, self.clock, self.lead = cluster, clock, lead
        self.created = 0

    async def happen(self):
        actions = (
            [self.create] * 6 + [self.finish] * 4 + [self.delete, self.cordon, self.restart, self.lose, self.touch]
        )
        self.random.choice([*actions, self.be_late, self.catch_up, self.wait])()
        if self.random.random() < 0.5:
            await settle()

    def create(self):
        self.created += 1
        made = pod(f"p{self.created}", cpu=str(self.random.randint(1, 4)), memory="1Gi")
        selector = {"disk": "ssd"} if self.random.random() < 0.2 else {}
        priority = self.random.choice([0, 0, 0, 5])
        created = f"2026-11-16T00:{self.created // 60 % 60:02}:{self.created % 60:02}Z"
        self.cluster.gate(made, created=created, nodeSelector=selector, priority=priority)

    def pods(self, *, bound):
        return [name for name, host in self.cluster.bound().items() if bool(host) is bound]

    def finish(self):
        if names := self.pods(bound=True):
            self.cluster.finish(self.random.choice(names))

    def delete(self):
        if names := self.pods(bound=False):
            self.cluster.server.remove("pods", self.random.choice(names))

    def touch(self):
        """Another client changes a pod."""
        if names := self.pods(bound=False):
            document = self.cluster.document(self.random.choice(names))
            labels = {"touched": str(self.random.random())}
            self.cluster.server.put({**document, "metadata": {**document["metadata"], "labels": labels}})

    def cordon(self):
        self.cluster.change(self.random.choice("ab"), unschedulable=self.random.random() < 0.5)

    def lose(self):
        done = self.random.random() < 0.5
        fault = self.random.choice([ApiFault(disconnect=True, done=done), ApiFault(status=503, done=done)])
        self.cluster.server.inject(fault, verb="patch", resource="pods")

    def be_late(self):
        self.cluster.late = True

    def catch_up(self):
        self.cluster.catch_up()

    def restart(self):
        self.lead()

    def wait(self):
        self.clock.now += 20


@pytest.mark.soak
async def test_no_kubelet_rejects_a_released_pod_and_none_waits_that_could_run(cluster, live, clocked, follow, clock):
    leading: list = []

    def lead():
        if leading:
            leading[-1][1].cancel()
        made = GateController(clocked, live, options=GateOptions(patience=30.0))
        leading.append((made, follow(made.run())))

    cluster.add("c", labels={"disk": "ssd"})
    lead()
    events = RandomEvents(cluster, clock, lead)
    for _ in range(rounds(60, soak=1000)):
        await events.happen()
    did("gated pods", events.created)

    cluster.catch_up()
    for name in "ab":
        cluster.change(name)
    controller = leading[-1][0]
    await until(lambda: not controller.gate.releases and not any(controller.gate.queue.heads()))
    await settle()
    await until(lambda: not controller.gate.releases and not any(controller.gate.queue.heads()))
    assert cluster.rejected == []
    assert [waiting.uid for waiting in controller.gate.queue if could_run(cluster, live, waiting)] == []
    assert {waiting.uid for waiting in controller.gate.queue} == set(events.pods(bound=False))


def could_run(cluster, live, waiting):
    """Whether a node would run a pod that waits, and is not kept for another."""
    read = read_pod(cluster.document(waiting.pod.name))
    nodes = [convert(node, NODES.type) for node in cluster.server.objects("nodes")]
    allowed = [node.metadata.name for node in nodes if not exclusions(node, live.find_by_uid(waiting.uid).spec)]
    allowed = [name for name in allowed if not live.scheduling.kept_nodes.keeps_out(name, waiting.pod, waiting.order)]
    return any(cluster.kubelets[host].host.decide_without_plugins(read).admitted for host in allowed)
