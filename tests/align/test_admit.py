"""The two phases: the choice of each policy and scope, and the details of a rejection."""

import sys
import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import pytest

from alignup.align.admit import NO_AFFINITY, effective_policy
from alignup.align.decision import Shortfall, shown_hints
from alignup.align.errors import PodError, ProviderError
from alignup.align.hint import Hint, Provider
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.merging.merge import MergeRule
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Container, Pod
from alignup.align.workload.names import POLICY_ANNOTATION, SCOPE_ANNOTATION
from tests.align.hosts import GIB, GPU, NIC, RESERVATION, make_host, make_pod
from tests.strategies_pods import guaranteed

FIRST, SECOND, BOTH = 0b01, 0b10, 0b11
LOCALITY = "Resources cannot be allocated with Topology locality"


def two(first: str, second: str, **more: Any) -> Pod:
    """A pod of two containers with these CPUs."""
    return Pod(
        name="a",
        uid="a",
        containers=(
            guaranteed("one", {"cpu": first, "memory": "1Gi"}),
            guaranteed("two", {"cpu": second, "memory": "1Gi"}),
        ),
        **more,
    )


def nodes(decision) -> list[int | None]:
    return [placement.hint.nodes for placement in decision.placements]


class TestScopes:
    def test_in_container_scope_each_container_has_its_node(self):
        decision = make_host(scope=Scope.CONTAINER).admit(two("3", "3"))

        assert nodes(decision) == [FIRST, SECOND]
        assert [step.container for step in decision.steps] == ["one", "two"]

    def test_in_pod_scope_all_containers_share_a_node(self):
        decision = make_host(scope=Scope.POD).admit(two("2", "2"))

        assert nodes(decision) == [SECOND, SECOND]
        assert [step.container for step in decision.steps] == [None]


class TestPolicies:
    def test_policy_none_merges_nothing(self):
        decision = make_host(Policy.NONE).admit(make_pod())

        assert decision.steps == ()
        assert decision.placements[0].hint == NO_AFFINITY
        assert decision.placements[0].as_text()["cpu"] == {"cpu": "1-2"}

    def test_without_preferences_a_single_node_has_no_affinity(self):
        decision = make_host().admit(Pod(name="a", uid="a", containers=(Container("app"),)))

        assert decision.steps[0].rule is MergeRule.PREFERRED
        assert nodes(decision) == [None]


class TestRefusals:
    def test_no_set_of_nodes_suits_all_resources(self):
        """The record says who found too little where, and by how much."""
        decision = make_host().decide(make_pod(cpu="5", gpu="1"))

        rejection = decision.rejection
        assert rejection
        assert (rejection.reason, rejection.message) == ("TopologyAffinityError", LOCALITY)
        assert (rejection.container, rejection.provider) == ("app", None)
        assert rejection.shortfalls == (Shortfall("cpu", "cpu", 5, 3, FIRST), Shortfall("cpu", "cpu", 5, 4, SECOND))
        assert [short.missing for short in rejection.shortfalls] == [2, 1]
        assert not decision.steps[-1].accepted

    def test_every_resource_fits_some_node_but_no_node_fits_all(self):
        """CPUs are left on the first node only and a GPU on the second."""
        host = make_host()
        host.admit(make_pod("cpus", cpu="4"))
        host.admit(make_pod("gpu", cpu="1", gpu="1"))

        rejection = host.decide(make_pod(cpu="2", gpu="1")).rejection

        assert rejection
        assert rejection.shortfalls == (
            Shortfall("device", GPU, 1, 0, FIRST),
            Shortfall("cpu", "cpu", 2, 0, SECOND),
        )

    def test_a_provider_cannot_serve_the_request(self):
        """Best effort never rejects by hints, so it is the provider that says no."""
        rejection = make_host(Policy.BEST_EFFORT).decide(make_pod(gpu="3")).rejection

        assert rejection
        assert rejection.reason == "UnexpectedAdmissionError"
        assert rejection.message == (
            f"Allocate failed due to requested number of devices unavailable for {GPU}. Requested: 3, Available: 2, "
            "which is unexpected"
        )
        assert (rejection.container, rejection.provider) == ("app", "device")
        assert rejection.shortfalls == (Shortfall("device", GPU, 3, 2),)

    def test_devices_near_two_nodes_or_none_count_once(self):
        """What a host lacks is counted over the host: here one device is near both nodes, and one near none."""
        host = make_host(Policy.BEST_EFFORT)
        host.update_devices(
            GPU, [Device(GPU, "a", nodes=0b01), Device(GPU, "b", nodes=0b11), Device(GPU, "c", nodes=None)]
        )

        rejection = host.decide(make_pod(gpu="4")).rejection

        assert rejection is not None
        assert rejection.shortfalls == (Shortfall("device", GPU, needed=4, free=3),)

    def test_memory_that_fits_nowhere_is_rejected_by_the_memory_provider(self):
        """It gives no hint then, which reads as "anywhere", as in the kubelet."""
        rejection = make_host().decide(make_pod(memory="40Gi")).rejection

        assert rejection
        assert rejection.provider == "memory"
        assert rejection.shortfalls == (Shortfall("memory", "memory", 40 * GIB, 32 * GIB - (64 << 20)),)

    def test_the_decision_contains_the_steps_so_far(self):
        decision = make_host().decide(two("2", "5"))

        assert [(step.container, step.accepted) for step in decision.steps] == [("one", True), ("two", False)]
        assert decision.placements == ()


class TestRecord:
    def test_the_decision_contains_everything_considered(self):
        host = make_host()
        host.admit(make_pod("before", cpu="2"))

        (step,) = host.decide(make_pod(cpu="2", gpu="1")).steps

        recorded = {
            (resource.provider, resource.resource): (resource.request, resource.free) for resource in step.resources
        }
        assert recorded == {
            ("device", GPU): (1, {0: 1, 1: 1}),
            ("cpu", "cpu"): (2, {0: 1, 1: 4}),
            ("memory", "memory"): (GIB, {0: 15 * GIB - (64 << 20), 1: 16 * GIB}),
        }
        assert (step.width, step.rule, step.hint) == (1, MergeRule.PREFERRED, Hint(SECOND, preferred=True))
        cpus = next(resource for resource in step.resources if resource.provider == "cpu")
        assert shown_hints(cpus).hints == (Hint(SECOND, preferred=True), Hint(BOTH, preferred=False))

    def test_a_provider_without_request_has_no_preference(self):
        (step,) = make_host().decide(make_pod()).steps

        device = step.resources[0]
        assert (device.provider, device.resource, device.request, device.free) == ("device", None, None, None)
        assert device.has_no_preference


class TestOwnPolicy:
    """A pod may choose policy and scope for itself where the settings allow it."""

    def test_off_by_default(self):
        lenient = make_pod(cpu="5", annotations={POLICY_ANNOTATION: "best-effort"})

        assert not make_host(Policy.SINGLE_NUMA_NODE).decide(lenient).admitted

    def test_invalid_annotations_are_ignored_if_off(self):
        assert make_host().decide(make_pod(annotations={POLICY_ANNOTATION: "nonsense"})).admitted

    @pytest.mark.parametrize(
        ("policy", "annotations", "cpus", "admitted"),
        [
            pytest.param(Policy.BEST_EFFORT, {}, ("5", "1"), True, id="the host's policy where it chooses none"),
            pytest.param(Policy.BEST_EFFORT, {POLICY_ANNOTATION: "restricted"}, ("5", "1"), False, id="stricter"),
            pytest.param(Policy.SINGLE_NUMA_NODE, {POLICY_ANNOTATION: "best-effort"}, ("5", "1"), True, id="looser"),
            pytest.param(Policy.SINGLE_NUMA_NODE, {}, ("3", "3"), True, id="the host's scope where it chooses none"),
            pytest.param(Policy.SINGLE_NUMA_NODE, {SCOPE_ANNOTATION: "pod"}, ("3", "3"), False, id="as a whole"),
            pytest.param(
                Policy.NONE,
                {POLICY_ANNOTATION: "single-numa-node", SCOPE_ANNOTATION: "pod"},
                ("3", "3"),
                False,
                id="both",
            ),
        ],
    )
    def test_a_pod_chooses_its_policy(self, policy, annotations, cpus, admitted):
        host = make_host(policy, pod_policy_annotations=True)

        decision = host.decide(two(*cpus, annotations=annotations))

        assert decision.admitted is admitted
        assert decision.policy == annotations.get(POLICY_ANNOTATION, policy)
        assert decision.scope == annotations.get(SCOPE_ANNOTATION, Scope.CONTAINER)

    def test_a_pod_chooses_its_scope(self):
        host = make_host(scope=Scope.POD, pod_policy_annotations=True)

        assert not host.decide(two("3", "3")).admitted
        assert host.decide(two("3", "3", annotations={SCOPE_ANNOTATION: "container"})).admitted

    def test_an_unknown_policy_or_scope_is_rejected_by_its_annotation(self):
        host = make_host(pod_policy_annotations=True)
        wrong = make_pod(annotations={POLICY_ANNOTATION: "strict", SCOPE_ANNOTATION: ""})

        with pytest.raises(PodError) as caught:
            host.admit(wrong)

        policy, scope = caught.value.problems
        assert policy.field == "metadata.annotations[topology.alignup.dev/policy]"
        assert policy.message == (
            'Unsupported value: "strict": supported values: "none", "best-effort", "restricted", "single-numa-node"'
        )
        assert scope.field == "metadata.annotations[topology.alignup.dev/scope]"
        assert scope.message == 'Unsupported value: "": supported values: "container", "pod"'

    def test_an_admitted_pod_with_invalid_annotations_is_kept(self):
        before = make_host()
        wrong = make_pod(annotations={POLICY_ANNOTATION: "strict"})
        before.admit(wrong)

        after = Host(before.machine, replace(before.settings, pod_policy_annotations=True), ledger=before.ledger)
        decision = after.admit(wrong)

        assert decision.kept
        assert decision.policy is Policy.SINGLE_NUMA_NODE

    def test_settings_without_annotations_are_the_hosts(self):
        rules = make_host(Policy.RESTRICTED, Scope.POD, pod_policy_annotations=True).rules

        assert effective_policy(make_pod(), rules) == (Policy.RESTRICTED, Scope.POD)


@dataclass(frozen=True)
class Picky(Provider[int]):
    """Prefers one node; allocates nothing if ``broken``."""

    node: int
    broken: bool = False

    name = "picky"

    def initial_ledger(self):
        return 0

    def hints(self, ledger, pod, container):
        return {"example.com/whim": [Hint(1 << self.node, preferred=True)]}

    def allocate(self, ledger, pod, container, *, affinity):
        if self.broken:
            raise ProviderError("no more whims")
        return ledger + 1

    def release(self, ledger, uid):
        return ledger - 1

    def describe(self, ledger, uid, container):
        return {"example.com/whim": str(ledger)}


class TestOthers:
    """Providers that joined are asked like any other."""

    def test_hints_of_others_count(self):
        plain = make_host()
        joined = Host(plain.machine, plain.settings, others=[Picky(node=1)])

        decision = joined.admit(make_pod(nic="1"))

        assert nodes(plain.admit(make_pod(nic="1"))) == [FIRST]
        assert nodes(decision) == [SECOND]
        assert decision.placements[0].as_text()["device"] == {NIC: "nic-1"}
        assert decision.placements[0].as_text()["picky"] == {"example.com/whim": "1"}

    def test_a_rejection_by_others_leaves_no_trace(self):
        joined = Host(make_host().machine, others=[Picky(node=1, broken=True)])
        before = joined.ledger

        decision = joined.admit(make_pod(memory="1Mi"))

        assert decision.rejection
        assert decision.rejection.provider == "picky"
        assert decision.rejection.message == "Allocate failed due to no more whims, which is unexpected"
        assert joined.ledger is before

    def test_others_need_not_report_amounts(self):
        joined = Host(
            make_host().machine, replace(make_host().settings, reservation=RESERVATION), others=[Picky(node=0)]
        )

        (step,) = joined.decide(make_pod()).steps

        assert (step.resources[-1].request, step.resources[-1].free) == (None, None)
        assert Picky(node=0).allocated_share(0, "example.com/whim", FIRST) == (0, 0)

    def test_others_release_with_the_pod(self):
        joined = Host(make_host().machine, others=[Picky(node=1)])
        joined.admit(make_pod())
        joined.start_container("a", "app")

        joined.release("a")

        assert joined.ledger.others["picky"] == 0


class TestManyContainers:
    """A pod author can list thousands of containers, so the cost of each must not depend on how many there are."""

    @pytest.mark.parametrize("kind", ["init", "sidecars", "resources", "containers"])
    def test_the_work_grows_with_the_number_of_containers_not_with_its_square(self, kind):
        decided, twice_as_many = decision_cost(many_containers(200, kind)), decision_cost(many_containers(400, kind))

        assert twice_as_many.calls < 2.3 * decided.calls
        assert twice_as_many.peak < 2.5 * decided.peak

    def test_a_release_gives_everything_back(self):
        host = make_host()
        idle = host.ledger.alignment_key()
        assert host.admit(many_containers(300, "init")).admitted

        host.release("a")

        assert host.ledger.alignment_key() == idle


@dataclass
class Cost:
    calls: int = 0
    peak: int = 0  #: bytes


def many_containers(number: int, kind: str) -> Pod:
    lasting = kind in {"containers", "sidecars"}
    texts = {"cpu": "1m", "memory": "1Ki"} if lasting else {"cpu": "1", "memory": "1Mi", GPU: "1"}
    containers = [
        guaranteed(
            f"c{index}",
            {**texts, **({f"example.com/{index}": "0"} if kind == "resources" else {})},
            sidecar=kind == "sidecars" and index % 2 == 0,
        )
        for index in range(number)
    ]
    if kind == "containers":
        return Pod(name="a", uid="a", containers=tuple(containers))
    return Pod(name="a", uid="a", init=tuple(containers), containers=(guaranteed("app", texts),))


def decision_cost(pod: Pod) -> Cost:
    """Return how many functions a decision and a release call, and how much memory they need."""
    host = make_host()
    cost = Cost()

    def count(_frame: object, event: str, _argument: object) -> None:
        cost.calls += event in {"call", "c_call"}

    tracemalloc.start()
    sys.setprofile(count)
    try:
        decision = host.admit(pod)
        host.release(pod.uid)
    finally:
        sys.setprofile(None)
        cost.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert decision.admitted, decision.rejection
    return cost
