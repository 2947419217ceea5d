"""Random events around gangs: whatever order a scheduler asks and binds in, no gang is left half bound.

Kubelets admit pods in the order of their bindings, and report them late at times. Pods are deleted midway, responses
are lost, other pods take room, nodes are unknown for a while, and leaders change.
"""

import asyncio
import json
from functools import partial
from random import Random
from typing import Any

import pytest

from alignup.kubernetes.api import Timing
from alignup.placement.scheduling.events import TimePassed
from alignup.schedule.extender.messages import BindingArgs, ExtenderArgs
from alignup.schedule.service import ScheduleService
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.effort import SEED, did, rounds
from tests.observe.api_objects import api_pod
from tests.schedule.gang_objects import member

pytestmark = pytest.mark.anyio

NODES = "ab"
GROUPS = ("first", "second")


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def timing(timing, clock):
    return Timing(retry=0.0, sleep=timing.sleep, clock=lambda: clock[0])


class RandomGangs:
    def __init__(self, nodes, client, follow, clock):
        self.random = Random(SEED)
        self.nodes, self.client, self.follow, self.clock = nodes, client, follow, clock
        self.pods = {}  #: by uid, that the API server has
        self.offered = {}  #: uid → node, by the last answer of filter
        self.sizes = dict.fromkeys(GROUPS, 0)
        self.admitted, self.rejected, self.unreported = set(), [], set()
        self.created, self.bound_gangs = 0, 0
        self.unknown = set()
        self.torn = set()
        self.service: Any = None
        self.task: Any = None

    async def lead(self):
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self.service = ScheduleService(self.client)
        self.task = self.follow(self.service.run())
        await until(lambda: self.service.leading)
        self.offered.clear()

    # Events

    async def happen(self):
        actions = [self.ask] * 8 + [self.bind] * 4 + [self.bind_all] * 2 + [self.create] * 4 + [self.create_single] * 2
        actions += [self.delete] + [self.end_group] * 4 + [self.report, self.lose, self.wait, self.lose_ledger]
        await self.random.choice(actions)()
        await self.follow_bindings()
        self.check_assumed()
        if self.random.random() < 0.03:
            await self.lead()

    async def create(self):
        """A job starts: some of its pods come later."""
        group = self.random.choice(GROUPS)
        if not self.members(group):
            self.torn.discard(group)
            self.sizes[group] = self.random.randint(2, 4)
        for _ in range(self.random.randint(1, 3)):
            if len(self.members(group)) < self.sizes[group]:
                self.created += 1
                cpus = self.random.choice([2, 3, 3, 4])
                await self.put(member(f"{group}-{self.created}", cpus, group=group, size=self.sizes[group]))

    async def create_single(self):
        self.created += 1
        await self.put(pod(f"single-{self.created}", cpu=str(self.random.randint(1, 4)), memory="1Gi"))

    async def put(self, made):
        self.pods[made.uid] = made
        self.nodes.create(made)
        await until(lambda: self.service.live.find_pod("default", made.name))

    async def ask(self):
        if waiting := self.waiting():
            nominated = self.random.random() < 0.1
            await self.filter(self.random.choice(waiting), self.random.choice(NODES) if nominated else NODES)

    async def filter(self, asked, names=NODES):
        document = api_pod(asked, phase="Pending")
        args = ExtenderArgs.read(self.encode({"Pod": document, "NodeNames": list(names)}))
        answer = self.service.filter.answer(args)
        assert not answer.error
        self.offered.pop(asked.uid, None)
        if answer.node_names:
            self.offered[asked.uid] = self.random.choice(answer.node_names)

    async def bind(self):
        if known := [uid for uid in self.offered if uid in self.pods]:
            await self.bind_one(self.random.choice(known))

    async def bind_all(self):
        """As for a PodGroup: in parallel."""
        group = self.random.choice(GROUPS)
        uids = [each.uid for each in self.members(group) if each.uid in self.offered]
        self.random.shuffle(uids)
        await asyncio.gather(*(self.bind_one(uid) for uid in uids))

    async def bind_one(self, uid):
        node, asked = self.offered.pop(uid), self.pods[uid]
        args = BindingArgs(pod_name=asked.name, pod_namespace="default", pod_uid=uid, node=node)
        problem = (await self.service.bind.respond(args)).error
        if not problem and asked.labels:
            group = asked.name.partition("-")[0]
            assert len(self.members(group)) >= self.sizes[group] or len(self.bound(group)) > 1, "some are missing"
        if "unknown whether" in problem:  # the node counts on it until the API server shows otherwise
            self.unknown.add(uid)

    async def delete(self):
        if self.pods and self.random.random() < 0.3:
            gone = self.random.choice(list(self.pods.values()))
            group = gone.name.partition("-")[0]
            if group in GROUPS and self.bound(group):
                self.torn.add(group)  # nothing keeps room for another one
            await self.remove(gone)

    async def end_group(self):
        group = self.random.choice(GROUPS)
        members = self.members(group)
        if members and all(each.uid in self.admitted for each in members):
            for each in members:
                await self.remove(each)
        for each in [
            each for each in self.pods.values() if each.name.startswith("single") and each.uid in self.admitted
        ]:
            await self.remove(each)

    async def remove(self, gone):
        host = self.nodes.bound().get(gone.name)
        del self.pods[gone.uid]
        self.nodes.server.remove("pods", gone.name)
        if gone.uid in self.admitted:
            kubelet = self.nodes.kubelets[host]
            kubelet.end(gone.uid)
            kubelet.host.release(gone.uid)
            kubelet.ended.clear()
            self.nodes.report(host)
        await until(lambda: not self.service.live.find_pod("default", gone.name))

    async def report(self):
        for host in self.unreported:
            self.nodes.report(host)
        self.unreported.clear()
        await asyncio.sleep(0)

    async def lose_ledger(self):
        """The observer of a node cannot read the state of its kubelet until the next report."""
        host = self.random.choice(NODES)
        self.nodes.report(host, ledger=None, problems=["the kubelet restarts"])
        self.unreported.add(host)
        await until(lambda: self.service.live.cluster.record(host) is None)

    async def lose(self):
        done = self.random.random() < 0.5
        fault = self.random.choice([ApiFault(disconnect=True, done=done), ApiFault(status=500, done=done)])
        self.nodes.server.inject(fault, verb="create", resource="pods")

    async def wait(self):
        half_bound = any(0 < len(self.bound(group)) < len(self.members(group)) for group in GROUPS)
        self.clock[0] += self.random.choice([5, 25] if half_bound else [5, 25, 400])  # places are kept for 300 s

    # The cluster

    async def follow_bindings(self):
        """Let kubelets admit what is bound, in the order of the bindings; their observers may be late."""
        documents = [each for each in self.nodes.server.objects("pods") if each["spec"].get("nodeName")]
        for document in sorted(documents, key=lambda each: int(each["metadata"]["resourceVersion"])):
            uid, host = document["metadata"]["uid"], document["spec"]["nodeName"]
            if uid in self.admitted:
                continue
            kubelet = self.nodes.kubelets[host]
            if kubelet.host.decide_without_plugins(self.pods[uid]).admitted:
                kubelet.admit(self.pods[uid])
                self.admitted.add(uid)
            else:
                self.rejected.append(self.pods[uid].name)
            self.unreported.add(host)
            await until(partial(self.is_observed, uid))
        if self.random.random() < 0.5:
            await self.report()
        assert self.rejected == []

    def check_assumed(self):
        """Every node whose state is known counts on the pods that are assumed there."""
        cluster = self.service.live.cluster
        for uid, hosts in self.service.live.assumed.items():
            assert all(cluster.record(host) is None or cluster.record(host).holds(uid) for host in hosts), uid

    def is_observed(self, uid):
        return uid not in self.service.live.assumed

    def members(self, group):
        return [each for each in self.pods.values() if each.name.startswith(group)]

    def bound(self, group):
        return [each for each in self.members(group) if self.nodes.bound().get(each.name)]

    def waiting(self):
        nodes = self.nodes.bound()
        return [each for each in self.pods.values() if not nodes.get(each.name)]

    def encode(self, message):
        return json.dumps(message).encode()

    async def finish_group(self, group):
        """Let the scheduler try the rest of a gang of which some pods are bound, until all are."""
        for _ in range(10):
            await self.report()
            await until(lambda: not self.service.live._changed)  # noqa: SLF001
            for each in [each for each in self.waiting() if each in self.members(group)]:
                await self.filter(each)
                if each.uid in self.offered:
                    await self.bind_one(each.uid)
                await self.follow_bindings()
            if len(self.bound(group)) == len(self.members(group)):
                return True
            self.clock[0] += 1
        return False


@pytest.mark.soak
async def test_no_gang_is_left_half_bound_and_no_kubelet_rejects_a_pod(nodes, client, follow, clock):
    model = RandomGangs(nodes, client, follow, clock)
    await model.lead()
    for _ in range(rounds(400, soak=8000)):
        await model.happen()
        for group in [group for group in GROUPS if group not in model.torn]:
            members, bound = model.members(group), model.bound(group)
            if len(members) >= model.sizes[group] and 0 < len(bound) < len(members) and model.random.random() < 0.5:
                assert await model.finish_group(group), [each.name for each in members]
                model.bound_gangs += 1
    did("gangs that were bound", model.bound_gangs)
    did("pods of gangs and others", model.created)

    clock[0] += 1000
    model.service.live.schedule(TimePassed())
    assert len(model.service.live.scheduling.gangs) == 0
    await until(lambda: not set(model.service.live.assumed) - model.admitted - model.unknown)
