"""Claims in the simulation of a node: nothing is given twice, nothing is lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.claims.alignment import HostClaims
from alignup.align.claims.resource_claims import ClaimObjects, ClaimRequest, DeviceClass
from alignup.align.cpus.options import CpuSettings
from alignup.align.host import Host, Settings
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, TopologySettings
from alignup.align.workload import Container, Pod, PodClaim, Resources
from alignup.machines.synthetic import parse
from alignup.simulate import node_simulation
from alignup.simulate.arrivals import GANG_LABEL, PodArrival, PodDeparture, PodSubmission, WorkloadEvent
from alignup.simulate.cluster_hosts import HostGroup
from alignup.simulate.cluster_simulation import ClusterSimulation
from alignup.simulate.node_simulation import SimulationResult
from alignup.simulate.schedulers import STRATEGIES
from alignup.simulate.simulated_claims import ClaimCounts
from tests.align.claims.samples import any_device, claim, device

MACHINE = parse("pack:2 numa:1(memory=8GiB) core:8 pu:1")
SETTINGS = Settings(
    topology=TopologySettings(policy=Policy.SINGLE_NUMA_NODE),
    cpus=CpuSettings(policy="static", reservation=Quantity.of(1), explicit=1),
)
GPU = ClaimRequest("gpu", "gpu")
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
DEVICES = tuple(device(f"gpu-{number}", node=number // 2) for number in range(4))
OBJECTS = ClaimObjects(
    {"gpu": DeviceClass("gpu", extended_resource="example.com/gpu")},
    {("default", "shared"): claim(GPU, name="shared")},
    {("default", "one"): claim(GPU, name="one"), ("default", "two"): claim(replace(GPU, count=2), name="two")},
)


def pod(name: str, *, cpus: int = 1, extended: int = 0, **named: str) -> Pod:
    amounts = {"cpu": Quantity.of(cpus), "memory": Quantity.of(1 << 20)}
    if extended:
        amounts["example.com/gpu"] = Quantity.of(extended)
    container = Container("app", Resources(amounts, amounts, ("gpu",) if named else ()))
    return Pod(name=name, uid=name, containers=(container,), claims=(PodClaim("gpu", **named),) if named else ())


def simulate(*events: WorkloadEvent, ignore_missing_devices: bool = False) -> SimulationResult:
    claims = HostClaims(OBJECTS, DEVICES, any_device)
    host = Host(MACHINE, SETTINGS)
    return node_simulation.run(host, events, ignore_missing_devices=ignore_missing_devices, claims=claims)


def given_devices(result: SimulationResult) -> list[list[str]]:
    return [
        [each.id.device for claimed in outcome.claims for _, each in claimed.state.devices]
        for outcome in result.outcomes
    ]


def test_claims_get_devices_and_give_them_back():
    result = simulate(
        PodArrival(0, pod("a", template="two")),
        PodArrival(1, pod("b", template="two")),
        PodArrival(2, pod("c", template="one")),
        PodDeparture(3, "a"),
        PodArrival(4, pod("d", template="one")),
    )

    assert given_devices(result) == [["gpu-0", "gpu-1"], ["gpu-2", "gpu-3"], [], ["gpu-0"]]
    assert [outcome.rejection and outcome.rejection.reason for outcome in result.outcomes] == [
        None,
        None,
        "NotSchedulable",
        None,
    ]
    assert result.claims == ClaimCounts(aligned=2, unaligned=1)


def test_pods_share_a_claim_of_its_own_which_outlives_them():
    result = simulate(
        PodArrival(0, pod("a", claim="shared")),
        PodArrival(1, pod("b", claim="shared")),
        PodDeparture(2, "a"),
        PodDeparture(3, "b"),
        PodArrival(4, pod("c", template="one")),
    )

    assert given_devices(result) == [["gpu-0"], ["gpu-0"], ["gpu-1"]]


def test_extended_resources_of_a_class_are_claims():
    result = simulate(PodArrival(0, pod("a", extended=3)), PodArrival(1, pod("b", extended=2)))

    assert given_devices(result) == [["gpu-0", "gpu-1", "gpu-2"], []]
    assert result.outcomes[1].rejection is not None
    assert result.outcomes[1].rejection.message == "no free devices match its claims"


def test_two_extended_resources_of_a_pod_have_devices_of_their_own():
    both = pod("a", extended=1)
    amounts = {**both.containers[0].resources.limits, IMPLICIT: Quantity.of(2)}
    both = replace(both, containers=(Container("app", Resources(amounts, amounts)),))
    claims = simulate(PodArrival(0, both)).outcomes[0].claims

    assert {claim.state.name: [each.id.device for _, each in claim.state.devices] for claim in claims} == {
        IMPLICIT: ["gpu-0", "gpu-1"],
        "example.com/gpu": ["gpu-2"],
    }


def test_a_rejected_pod_leaves_its_devices():
    result = simulate(PodArrival(0, pod("a", cpus=9, template="two")), PodArrival(1, pod("b", extended=4)))

    assert [outcome.admitted for outcome in result.outcomes] == [False, True]


def test_an_unknown_claim_keeps_a_pod_from_the_node():
    (outcome,) = simulate(PodArrival(0, pod("a", claim="gone"))).outcomes

    assert outcome.rejection is not None
    assert outcome.rejection.message == "claim gpu: ResourceClaim default/gone is not known"


@pytest.mark.parametrize("lenient", [False, True])
def test_missing_devices_are_ignored_with_claims_too(lenient):
    wanting = pod("a", template="one")
    (container,) = wanting.containers
    amounts = {**container.resources.requests, "example.com/nic": Quantity.of(1)}
    resources = replace(container.resources, requests=amounts, limits=amounts)
    wanting = replace(wanting, containers=(replace(container, resources=resources),))

    (outcome,) = simulate(PodArrival(0, wanting), ignore_missing_devices=lenient).outcomes

    assert (outcome.missing, outcome.admitted) == (("example.com/nic",), lenient)


@given(st.lists(st.tuples(st.sampled_from(["one", "two", "extended"]), st.integers(0, 30)), max_size=12))
def test_no_device_is_given_twice_and_none_is_lost(workload):
    events: list[WorkloadEvent] = []
    for number, (kind, life) in enumerate(workload):
        wanting = pod(f"p{number}", extended=1) if kind == "extended" else pod(f"p{number}", template=kind)
        events += [PodArrival(10 * number, wanting), PodDeparture(10 * number + 5 + life, wanting.uid)]
    events.append(PodArrival(1000, pod("last", extended=4)))

    result = simulate(*events)

    held: dict[str, list[str]] = {}
    devices = dict(zip([outcome.pod.uid for outcome in result.outcomes], given_devices(result), strict=True))
    for event in sorted(events, key=lambda event: (event.time, isinstance(event, PodArrival))):
        if isinstance(event, PodArrival):
            in_use = [name for names in held.values() for name in names]
            assert not set(devices[event.pod.uid]) & set(in_use)
            held[event.pod.uid] = devices[event.pod.uid]
        else:
            held.pop(event.uid)
    assert len(devices["last"]) == 4


class TestClusters:
    GPUS = HostGroup(name="gpu", machine=MACHINE, settings=SETTINGS, claims=HostClaims(OBJECTS, DEVICES, any_device))
    CPUS = HostGroup(name="cpu", machine=MACHINE, settings=SETTINGS, claims=HostClaims(OBJECTS, (), any_device))

    def run(self, *pods: Pod, strategy: str = "alignup", duration: float = 10) -> ClusterSimulation:
        submissions = [PodSubmission(time, pod, duration) for time, pod in enumerate(pods)]
        simulation = ClusterSimulation([self.CPUS, self.GPUS], submissions, strategy)
        self.result = simulation.run()
        return simulation

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_pods_go_where_their_claims_have_devices(self, strategy):
        pods = [pod("a", template="two"), pod("b", extended=1), pod("c"), pod("d", claim="shared")]

        runs = self.run(*pods, strategy=strategy).runs

        assert [run.host for run in runs if run.submission.pod.name != "c"] == ["gpu-0"] * 3
        assert self.result.started == 4
        assert self.result.claims.aligned + self.result.claims.unaligned == 3

    def test_a_pod_waits_until_devices_are_free(self):
        runs = self.run(pod("a", extended=4), pod("b", template="one")).runs

        assert [run.started for run in runs] == [0, 10]

    def test_a_pod_whose_claim_no_node_serves_stays_pending(self):
        self.run(pod("a", extended=5), pod("b", claim="gone"))

        assert (self.result.started, self.result.pending) == (0, 2)

    def test_a_gang_gets_devices_for_all_or_none(self):
        members = [replace(pod(name, template="two"), labels={GANG_LABEL: "job"}) for name in ("a", "b", "c")]
        submissions = [PodSubmission(0, member, 10) for member in members]
        simulation = ClusterSimulation([self.GPUS], [*submissions, PodSubmission(1, pod("d", extended=4), 10)])
        result = simulation.run()

        assert (result.started, result.pending) == (1, 3)

    def test_a_gang_that_does_not_fit_leaves_a_claim_of_its_own_without_devices(self):
        members = [pod("a", claim="shared"), pod("b", extended=4)]
        gang = [PodSubmission(0, replace(member, labels={GANG_LABEL: "job"}), 10) for member in members]
        simulation = ClusterSimulation([self.GPUS], [*gang, PodSubmission(1, pod("c", extended=4), 10)])
        simulation.run()

        assert [run.host for run in simulation.runs] == ["", "", "gpu-0"]
