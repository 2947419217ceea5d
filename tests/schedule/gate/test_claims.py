"""Gated pods with ResourceClaims: released where devices for them are, to several nodes, and never stuck."""

from dataclasses import replace
from functools import partial
from random import Random
from unittest.mock import Mock

import pytest

from alignup.align.errors import WorkLimitError
from alignup.align.workload.names import DEVICE_CLASS_PREFIX, DEVICES_ANNOTATION
from alignup.documents.codec import convert
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.pod_demands import NOT_NEAR
from alignup.placement.scheduling import claim_rules
from alignup.placement.scheduling.claim_rules import NOT_ALIGNED, SURE
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.gate.controller import GateController
from alignup.schedule.gate.release_patch import NODE_ANNOTATION, pinned_nodes
from alignup.schedule.live_cluster import LiveCluster
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.effort import SEED, did, rounds
from tests.observe.api_objects import node
from tests.schedule.claim_objects import ENDLESS_SELECTOR, claim, claiming, device_class, resource_slice, template
from tests.schedule.gang_objects import gang
from tests.schedule.gate.simulated import settle

pytestmark = pytest.mark.anyio

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def released_to(cluster, name):
    return pinned_nodes(convert(cluster.document(name), ApiPod))


def bound_node(cluster, name):
    return cluster.bound()[name]


def was_scheduled(cluster, name):
    """Whether the scheduler has bound a pod, or said that it cannot."""
    return bound_node(cluster, name) or cluster.document(name)["status"].get("conditions")


async def explained(cluster, controller, clock):
    """Why a pod is not released, as its event says."""
    await until(lambda: controller.gate.queue.blocked)
    clock.advance(10, controller)
    await until(cluster.events)
    return cluster.events()[0][2]


@pytest.fixture
async def served(cluster, live):
    """A class and a template, and no devices."""
    cluster.server.put(device_class())
    cluster.server.put(template())
    await until(lambda: live.claims.objects.classes and live.claims.objects.templates)
    return cluster.server


async def put_slices(server, live, **numa_nodes):
    for name, places in numa_nodes.items():
        server.put(resource_slice(name, places))
    await until(lambda: live.claims.devices == sum(map(len, numa_nodes.values())))


async def test_a_pod_goes_where_its_claim_can_be_served(cluster, controller, live, served):
    await put_slices(served, live, b=(0, 1))
    cluster.gate(claiming(pod("p")))
    await until(lambda: cluster.bound().get("p") == "b")
    assert released_to(cluster, "p") == ("b",)


async def test_a_pod_is_released_to_several_nodes_and_counts_on_each_until_it_is_bound(
    cluster, controller, live, served
):
    await put_slices(served, live, a=(0, 1), b=(0, 1))
    cluster.paused.add("p")
    cluster.gate(claiming(pod("p", cpu="4")))
    await until(lambda: released_to(cluster, "p"))
    assert set(released_to(cluster, "p")) == {"a", "b"}
    other = pod("other", cpu="4")
    assert {host: live.verdict(other, host).admits for host in "ab"} == {"a": False, "b": False}
    assert all(len(live.scheduling.assumptions.on(host)) == 1 for host in "ab")

    cluster.paused.clear()
    cluster.gate(other)
    await until(lambda: all(cluster.bound().get(name) for name in ("p", "other")))
    assert {cluster.bound()[name] for name in ("p", "other")} == {"a", "b"}
    await until(lambda: live.assumed == {})


async def test_another_leader_counts_on_all_nodes_of_a_released_pod(
    cluster, live, served, *, clocked, follow, run_controller
):
    await put_slices(served, live, a=(0, 1), b=(0, 1))
    cluster.paused.add("p")
    first = GateController(clocked, live, options=GateOptions())
    running = follow(first.run())
    cluster.gate(claiming(pod("p", cpu="4")))
    await until(lambda: released_to(cluster, "p"))
    running.cancel()
    await settle()
    second = run_controller()
    await until(lambda: "p" in second.gate.releases)
    assert set(live.assumed["p"]) == {"a", "b"}
    cluster.paused.clear()
    cluster.gate(claiming(pod("q")))
    await until(lambda: all(cluster.bound().get(name) for name in "pq"))


@pytest.mark.parametrize(
    ("host_name", "count"),
    [
        pytest.param("host-{}", 2, id="by host names, several"),
        pytest.param("", 1, id="without host names, one"),
    ],
)
async def test_a_pod_with_terms_is_released_to_nodes(cluster, controller, live, served, *, host_name, count):
    """Terms of its own are restricted by host names; ``test_releases.py`` has the restricted terms."""
    for name in "ab":
        named = {"kubernetes.io/hostname": host_name.format(name)} if host_name else {}
        cluster.change(name, labels={"disk": "ssd", **named})
    await put_slices(served, live, a=(0, 1), b=(0, 1))
    await until(lambda: all(live.nodes.get(name).metadata.labels for name in "ab"))
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    cluster.gate(claiming(pod("p")), affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}})
    await until(lambda: cluster.bound().get("p"))
    assert len(released_to(cluster, "p")) == count


async def test_without_rights_a_pod_is_released_to_all_nodes_that_admit_it(cluster, client, follow, clocked):
    cluster.server.inject(ApiFault(status=403, times=10_000), resource="deviceclasses")
    live = LiveCluster(client)
    follow(live.run())
    await live.ready.wait()
    follow(GateController(clocked, live, options=GateOptions()).run())
    cluster.server.put(device_class())
    cluster.server.put(template())
    cluster.server.put(resource_slice("b"))
    cluster.gate(claiming(pod("p")))
    await until(lambda: cluster.bound().get("p") == "b")
    assert set(released_to(cluster, "p")) == {"a", "b"}


async def test_a_pod_waits_for_its_claim_and_is_released_when_it_comes(cluster, controller, live, served, clock):
    await put_slices(served, live, a=(0, 1))
    cluster.gate(claiming(pod("p"), claim="late"))
    assert "ResourceClaim default/late is not known" in await explained(cluster, controller, clock)
    served.put(claim("late"))
    await until(lambda: cluster.bound().get("p") == "a")


async def test_an_extended_resource_of_a_class_is_no_shortage(cluster, controller, live, served):
    await put_slices(served, live, b=(0, 1))
    cluster.gate(pod("p", None, **{f"{DEVICE_CLASS_PREFIX}gpu": "1"}))
    await until(lambda: released_to(cluster, "p") == ("b",))


async def test_a_pod_that_requires_alignment_is_released_only_where_it_is_certain(
    cluster, controller, live, served, clock
):
    """Four CPUs fit on NUMA node 1 only."""
    await put_slices(served, live, a=(0, 1))
    cluster.gate(claiming(pod("p", cpu="4"), preference="require"))
    assert NOT_ALIGNED in await explained(cluster, controller, clock)
    served.put(resource_slice("b", (1,)))
    await until(lambda: cluster.bound().get("p") == "b")
    metric = "alignup_claimed_pods_total"
    await until(lambda: live.metrics.registry.get_sample_value(metric, {"alignment": "aligned"}) == 1)


async def test_a_pod_that_demands_near_devices_is_released_only_where_all_are(cluster, controller, live, served, clock):
    def put_roots(name, *roots):
        attributes = [{"resource.kubernetes.io/pcieRoot": {"string": root}} for root in roots]
        devices = [{"name": f"gpu-{number}", "attributes": each} for number, each in enumerate(attributes)]
        served.put(resource_slice(name, devices=devices))

    served.put(template(count=2))
    put_roots("a", "pci0000:10", "pci0000:10", "pci0000:20")
    await until(lambda: live.claims.devices == 3)
    cluster.gate(claiming(replace(pod("p"), annotations={DEVICES_ANNOTATION: "same-root"}), preference="ignore"))
    assert NOT_NEAR in await explained(cluster, controller, clock)
    put_roots("b", "pci0000:10", "pci0000:10")
    await until(lambda: cluster.bound().get("p") == "b")
    assert released_to(cluster, "p") == ("b",)


async def test_nodes_where_devices_can_be_beside_the_cpus_come_first(cluster, controller, live, served):
    for name in "cdefg":
        cluster.add(name)
    await until(lambda: len(live.cluster.hosts) == 7)
    await put_slices(served, live, **dict.fromkeys("abc", (0,)), **dict.fromkeys("defg", (1,)))
    cluster.gate(claiming(pod("p", cpu="4")))
    await until(lambda: cluster.bound().get("p"))
    assert set(released_to(cluster, "p")) == set("defg")
    assert len(released_to(cluster, "p")) == SURE


async def test_a_node_of_several_that_goes_does_not_end_the_release(cluster, controller, live, served):
    await put_slices(served, live, a=(0, 1), b=(0, 1))
    cluster.paused.add("p")
    cluster.gate(claiming(pod("p")))
    await until(lambda: released_to(cluster, "p"))
    cluster.server.remove("nodes", "a")
    await until(lambda: live.nodes.get("a") is None)
    await settle()
    assert "p" in controller.gate.releases
    cluster.paused.clear()
    cluster.gate(claiming(pod("q")))
    await until(lambda: cluster.bound().get("p") == "b")
    assert cluster.document("p")["metadata"]["annotations"][NODE_ANNOTATION] in {"a,b", "b,a"}


async def test_a_bound_pod_that_cannot_be_read_any_more_stops_nobody(cluster, controller, live, served):
    await put_slices(served, live, a=(0, 1), b=(0, 1))
    cluster.paused.add("p")
    cluster.gate(claiming(pod("p", cpu="1")))
    await until(lambda: released_to(cluster, "p"))
    document = cluster.document("p")
    wrong = {"name": "app", "resources": {"limits": {"cpu": "much"}}}
    served.put({**document, "spec": {**document["spec"], "nodeName": "a", "containers": [wrong]}})
    await until(lambda: "Pod default/p" in live.unreadable)
    cluster.gate(claiming(pod("q", cpu="1")))
    await until(lambda: cluster.bound().get("q") == "b")


async def test_claims_of_a_gang_are_looked_at_once_on_each_node_that_admits_its_pods(
    cluster, controller, live, served, monkeypatch
):
    """Its pods differ in their names only, and one of three nodes is full."""
    cluster.add("c")
    cluster.gate(pod("first", cpu="4"), nodeName="c")
    cluster.kubelets["c"].run(pod("first", cpu="4"))
    cluster.report("c")
    await until(lambda: len(live.cluster.hosts) == 3 and live.verdict(pod("p", cpu="4"), "c").rejection)
    claim_fit = Mock(wraps=live.claim_fit)
    monkeypatch.setattr(live, "claim_fit", claim_fit)
    await put_slices(served, live, a=(0, 1), b=(0, 1))
    pods = [claiming(each) for each in gang(2, cpus=4)]
    for each in pods:
        cluster.gate(each)
    await until(lambda: sorted(cluster.bound().values()) == ["a", "b", "c"])
    assert sorted(call.args[1] for call in claim_fit.call_args_list) == ["a", "b"]


@pytest.mark.usefixtures("served")
async def test_a_pod_whose_claims_take_too_much_work_stops_nobody(cluster, controller, live, clock, monkeypatch):
    """The pods wait, alone or in a gang, and their events say why."""
    problem = "no devices were found within 100000 steps"

    def explain(*_):
        raise WorkLimitError(problem, sources=())

    monkeypatch.setattr(live, "explain_claims", explain)
    await put_slices(cluster.server, live, a=(0, 1), b=(0, 1))
    pods = [claiming(each, preference="require") for each in (pod("p"), *gang(2))]
    for each in pods:
        cluster.gate(each)
    await until(lambda: len(controller.gate.queue.blocked) == 2)
    clock.advance(10, controller)
    waits = f"no kubelet can decide on the pod: {problem}"
    gang_waits = f"gang default/train: no kubelet can decide on its pods: {problem}"
    expected = {("p", "NoNode", waits), *((each.name, "NoNode", gang_waits) for each in pods[1:])}
    await until(lambda: set(cluster.events()) >= expected)
    cluster.gate(pod("q"))
    await until(lambda: cluster.bound().get("q"))


async def test_a_bound_pod_whose_claims_take_too_much_work_stops_nobody(cluster, controller, live, served, monkeypatch):
    await put_slices(served, live, a=(0,))
    cluster.paused.add("p")
    cluster.gate(claiming(pod("p", cpu="1")))
    await until(lambda: released_to(cluster, "p"))

    def explain(*_):
        raise WorkLimitError("too much work", sources=())

    monkeypatch.setattr(live, "explain_claims", explain)
    cluster.paused.clear()
    cluster.gate(pod("q", cpu="1"))
    await until(lambda: cluster.bound() == {"p": "a", "q": "b"})
    await until(lambda: controller.gate.claims.next_check() is None)


@pytest.mark.soak
@pytest.mark.parametrize(("nodes_each", "may_stick"), [(1, True), (2, False), (SURE, False)])
async def test_with_several_nodes_a_device_that_others_take_first_stops_no_pod(
    cluster, controller, live, served, monkeypatch, *, nodes_each, may_stick
):
    """Six nodes with one device each; in a third of the cases, a pod without the gate takes one after the release."""
    monkeypatch.setattr(claim_rules, "SURE", nodes_each)
    for name in "cdef":
        cluster.add(name)
    await put_slices(served, live, **dict.fromkeys("abcdef", (1,)))
    await until(lambda: len(live.cluster.hosts) == 6)
    random, stuck, total = Random(SEED), 0, rounds(12, soak=300)
    for number in range(total):
        name = f"p{number}"
        cluster.paused.add(name)
        cluster.gate(claiming(pod(name, cpu="4")))
        await until(partial(released_to, cluster, name))
        if random.random() < 1 / 3:
            served.put(claim("foreign", ["gpu-0"], released_to(cluster, name)[0]))
        cluster.paused.discard(name)
        served.put(node("g", labels={"round": name}))  # the scheduler looks again
        await until(partial(was_scheduled, cluster, name))
        stuck += not cluster.bound()[name]
        if any(each["metadata"]["name"] == "foreign" for each in served.objects("resourceclaims")):
            served.remove("resourceclaims", "foreign")
        await until(partial(bound_node, cluster, name))  # when the device is free again
        await until(lambda: not controller.gate.releases)
        cluster.finish(name)
        await until(lambda: not live.claims.objects.taken())
    did(f"pods released to {nodes_each} nodes", total)
    did(f"pods released to {nodes_each} nodes that were stuck", stuck)
    assert bool(stuck) is may_stick
    assert cluster.rejected == []


class ClaimEvents:
    """Random pods with and without claims, which end; slices that change; leaders that change; lost responses."""

    def __init__(self, cluster, lead):
        self.random = Random(SEED)
        self.cluster, self.lead, self.created = cluster, lead, 0

    async def happen(self):
        actions = [self.create] * 6 + [self.finish] * 4 + [self.slice, self.foreign, self.lead, self.lose, self.late]
        self.random.choice(actions)()
        if self.random.random() < 0.5:
            await settle()

    def create(self):
        self.created += 1
        made = pod(f"p{self.created}", cpu=str(self.random.randint(1, 4)), memory="1Gi")
        kind = self.random.random()
        if kind < 0.5:
            made = claiming(made, template=self.random.choice(["gpus", "two"]))
        elif kind < 0.6:
            made = claiming(made, claim="shared")
        created = f"2026-11-16T00:{self.created // 60 % 60:02}:{self.created % 60:02}Z"
        self.cluster.gate(made, created=created)

    def finish(self):
        if names := [name for name, host in self.cluster.bound().items() if host]:
            self.cluster.finish(self.random.choice(names))

    def slice(self):
        self.cluster.server.put(
            resource_slice(self.random.choice("abc"), self.random.choice([(0, 1), (1,), (0, 0, 1)]))
        )

    def foreign(self):
        """A claim of others takes a device, or gives it back."""
        if any(each["metadata"]["name"] == "foreign" for each in self.cluster.server.objects("resourceclaims")):
            self.cluster.server.remove("resourceclaims", "foreign")
        else:
            name, objects = self.random.choice("abc"), self.cluster.dra.objects()
            free = [each.id for each in self.cluster.dra.devices(name) if each.id not in objects.taken()]
            if local := [each for each in free if each.pool == name]:
                self.cluster.server.put(claim("foreign", [local[0].device], name))

    def lose(self):
        done = self.random.random() < 0.5
        self.cluster.server.inject(ApiFault(disconnect=True, done=done, times=1), verb="patch", resource="pods")

    def late(self):
        if self.cluster.late:
            self.cluster.catch_up()
        else:
            self.cluster.late = True


@pytest.mark.soak
async def test_no_pod_with_claims_is_rejected_or_stuck_or_waits_that_could_run(cluster, live, clocked, follow, served):
    served.put(template("two", count=2))
    served.put(claim("shared"))
    leading: list = []

    def lead():
        if leading:
            leading[-1][1].cancel()
        made = GateController(clocked, live, options=GateOptions(patience=1e9))
        leading.append((made, follow(made.run())))

    cluster.add("c")
    for name in "abc":
        served.put(resource_slice(name, (0, 1)))
    lead()
    events = ClaimEvents(cluster, lead)
    for _ in range(rounds(60, soak=1500)):
        await events.happen()
    did("gated pods", events.created)
    cluster.catch_up()
    await settle()
    controller = leading[-1][0]

    def done():
        return not controller.gate.releases and not any(controller.gate.queue.heads())

    await until(done)
    await settle()
    await until(done)
    assert cluster.rejected == []
    stuck = [name for name, host in cluster.bound().items() if not host and name not in cluster.gates()]
    assert stuck == []
    assert [waiting.uid for waiting in controller.gate.queue if could_run(cluster, live, waiting)] == []


def could_run(cluster, live, waiting):
    """Whether a node would run a pod that waits: its kubelet admits it, and there are devices."""
    document = cluster.document(waiting.pod.name)
    names = cluster.dra.claims(document)
    return any(
        kubelet.host.decide_without_plugins(replace(waiting.pod, class_resources=())).admitted
        and (not names or cluster.dra.allocations(names, host) is not None)
        for host, kubelet in cluster.kubelets.items()
    )


async def test_a_selector_that_fails_holds_up_nobody_else(cluster, controller, live, served):
    served.put(template("endless", selector=ENDLESS_SELECTOR))
    await until(lambda: ("default", "endless") in live.claims.objects.templates)
    await put_slices(served, live, a=(0, 1), b=(0, 1))
    cluster.paused.add("endless")  # which its scheduler here cannot evaluate either
    cluster.gate(claiming(pod("endless"), template="endless"))
    await until(lambda: released_to(cluster, "endless") == ("a", "b"))  # only the scheduler can tell
    cluster.add("c")  # without devices, so that the pod does not count there until it is bound
    cluster.gate(pod("healthy"))
    await until(lambda: cluster.bound().get("healthy") == "c")
    assert "takes more than 10,000 steps" in live.claim_fit(claiming(pod("x"), template="endless"), "a").reason
