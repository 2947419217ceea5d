"""Random events around gangs behind the gate: none is left half released, and no kubelet rejects a pod."""

from dataclasses import replace
from random import Random

import pytest

from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.gate.controller import GateController
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.effort import SEED, did, rounds
from tests.schedule.gang_objects import member
from tests.schedule.gate.simulated import settle

pytestmark = pytest.mark.anyio

GROUPS = ("first", "second", "third")


class RandomGangs:
    def __init__(self, cluster, clock, lead):
        self.random = Random(SEED)
        self.cluster, self.clock, self.lead = cluster, clock, lead
        self.created, self.jobs, self.started = 0, 0, 0
        self.sizes = {}

    async def happen(self):
        actions = [self.create] * 6 + [self.create_single] * 2 + [self.finish] * 4 + [self.delete, self.lead, self.lose]
        self.random.choice([*actions, self.touch, self.be_late, self.cluster.catch_up, self.wait])()
        if self.random.random() < 0.5:
            await settle()

    def time(self):
        self.created += 1
        return f"2026-11-16T00:{self.created // 60 % 60:02}:{self.created % 60:02}Z"

    def create(self):
        """Some pods of a job come; the others later."""
        group = self.random.choice(GROUPS)
        if not self.members(group):
            self.jobs += 1
            self.sizes[group] = self.random.randint(2, 4)
        for _ in range(self.random.randint(1, 3)):
            if len(self.members(group)) < self.sizes[group]:
                created, cpus = self.time(), self.random.choice([2, 3, 3, 4])
                made = member(f"{group}-{self.created}", cpus, group=f"{group}-{self.jobs}", size=self.sizes[group])
                known = self.members(group)
                labels = known[0]["metadata"]["labels"] if known else made.labels
                self.cluster.gate(_with_labels(made, labels), created=created, priority=self.random.choice([0, 0, 5]))

    def create_single(self):
        created = self.time()
        made = pod(f"single-{self.created}", cpu=str(self.random.randint(1, 4)), memory="1Gi")
        self.cluster.gate(made, created=created)

    def members(self, group):
        pods = self.cluster.server.objects("pods")
        return [each for each in pods if each["metadata"]["name"].startswith(f"{group}-")]

    def finish(self):
        group = self.random.choice(GROUPS)
        members = self.members(group)
        if len(members) == self.sizes.get(group) and all(each["spec"].get("nodeName") for each in members):
            self.started += 1
            for each in members:
                self.cluster.finish(each["metadata"]["name"])
        for name, host in self.cluster.bound().items():
            if host and name.startswith("single"):
                self.cluster.finish(name)

    def delete(self):
        """A job is deleted before it starts."""
        members = self.members(self.random.choice(GROUPS))
        if all(each["spec"].get("schedulingGates") for each in members):
            for each in members:
                self.cluster.server.remove("pods", each["metadata"]["name"])

    def touch(self):
        names = [name for name, host in self.cluster.bound().items() if not host]
        if names:
            document = self.cluster.document(self.random.choice(names))
            annotations = document["metadata"].get("annotations", {}) | {"touched": str(self.random.random())}
            self.cluster.server.put({**document, "metadata": {**document["metadata"], "annotations": annotations}})

    def lose(self):
        done = self.random.random() < 0.5
        fault = self.random.choice([ApiFault(disconnect=True, done=done), ApiFault(status=503, done=done)])
        self.cluster.server.inject(fault, verb="patch", resource="pods")

    def be_late(self):
        self.cluster.late = True

    def wait(self):
        self.clock.now += 20


def _with_labels(made, labels):
    return replace(made, labels=labels)


@pytest.mark.soak
async def test_no_gang_is_left_half_released_and_no_kubelet_rejects_a_pod(cluster, live, clocked, follow, clock):
    leading: list = []

    def lead():
        if leading:
            leading[-1][1].cancel()
        made = GateController(clocked, live, options=GateOptions(patience=30.0))
        leading.append((made, follow(made.run())))

    cluster.add("c")
    lead()
    events = RandomGangs(cluster, clock, lead)
    for _ in range(rounds(100, soak=1500)):
        await events.happen()
        assert cluster.rejected == []
    did("jobs", events.jobs)
    did("jobs that ran to their end", events.started)

    cluster.catch_up()
    controller = leading[-1][0]
    for _ in range(2):
        await settle()
        await until(lambda: not controller.gate.releases and not any(controller.gate.queue.heads()))
    assert cluster.rejected == []
    for group in GROUPS:
        members = events.members(group)
        bound = [each for each in members if each["spec"].get("nodeName")]
        assert len(bound) in {0, len(members)}, [each["metadata"]["name"] for each in members]
