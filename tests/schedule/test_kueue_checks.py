"""Kueue's admission checks, with the other side scripted: quota, admission and eviction as Kueue documents them."""

import asyncio
import itertools
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ParseError
from alignup.documents.codec import convert
from alignup.kubernetes.api.kueue_resources import WORKLOAD_ANNOTATION, TopologyAssignment
from alignup.placement.verdict import WAITS_FOR_CONFIRMATION
from alignup.schedule import schedulable_nodes
from alignup.schedule.kueue_checks import (
    CONTROLLER,
    FIRST_RETRY,
    LONGEST_RETRY,
    MAX_PODS,
    STARTING_SECONDS,
    AdmissionChecks,
)
from alignup.schedule.metrics import ScheduleMetrics
from alignup.schedule.node_selection import exclusions
from alignup.testing.api_server import ServedResource
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod, overflowing_pod

pytestmark = pytest.mark.anyio

API = "kueue.x-k8s.io/v1beta2"
NOW = 1_800_000_000.0
KINDS = {"Workload": ("workloads", True), "AdmissionCheck": ("admissionchecks", False)}
KINDS["ResourceFlavor"] = ("resourceflavors", False)
NEGATIVE = {"name": "app", "resources": {"requests": {"cpu": "-1"}}}


def assign_domains(**pods):
    """Return the assignment of this many pods to each node."""
    part = {
        "domainCount": len(pods),
        "valuesPerLevel": [{"individual": {"roots": list(pods)}}],
        "podCounts": {"individual": list(pods.values())},
    }
    return {"topologyAssignment": {"levels": ["kubernetes.io/hostname"], "slices": [part]}}


class Kueue:
    """The objects of Kueue, and what it does with them."""

    def __init__(self, server):
        self.server = server
        for kind, (plural, namespaced) in KINDS.items():
            server.serve(
                ServedResource(
                    kind=kind, plural=plural, group="kueue.x-k8s.io", version="v1beta2", namespaced=namespaced
                )
            )
        self.add_check("numa")

    def add_check(self, name):
        self._put("AdmissionCheck", name, spec={"controllerName": CONTROLLER})

    def _put(self, kind, name, *, namespace="default", **fields):
        metadata = {"name": name, "uid": name, **({"namespace": namespace} if KINDS[kind][1] else {})}
        self.server.put({"apiVersion": API, "kind": kind, "metadata": metadata, **fields})

    def flavor(self, name, **labels):
        self._put("ResourceFlavor", name, spec={"nodeLabels": labels})

    def reserve(self, name, count=2, *, cpu="4", state="Pending", retries=0, assignment=None, template=None, **where):
        """Create a workload, or give it its quota again: its checks are pending then."""
        status = {"name": "numa", "state": state, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        spec = api_pod(pod(name, cpu=cpu, memory="1Gi"))["spec"]
        self._put(
            "Workload",
            name,
            **where,
            spec={"podSets": [{"name": "main", "count": count, "template": template or {"spec": spec}}]},
            status={
                "conditions": [{"type": "QuotaReserved", "status": "True"}],
                "admission": {"podSetAssignments": [{"name": "main", "count": count, **(assignment or {})}]},
                "admissionChecks": [{**status, "retryCount": retries}],
            },
        )

    async def reserve_until(self, state, name, *args, **options):
        """Give a workload its quota, and wait until its check has this state."""
        self.reserve(name, *args, **options)
        await until(lambda: self.state(name) == state)

    def workload(self, name):
        """Return a copy of a workload: the server ignores what is equal to the object that it has."""
        return deepcopy(next(each for each in self.server.objects("workloads") if each["metadata"]["name"] == name))

    def add_condition(self, name, condition):
        document = self.workload(name)
        document["status"]["conditions"].append({"type": condition, "status": "True"})
        self.server.put(document)

    def check(self, name, check="numa"):
        (entry,) = [each for each in self.workload(name)["status"]["admissionChecks"] if each["name"] == check]
        return entry

    def state(self, name):
        return self.check(name)["state"]


@pytest.fixture
def kueue(server):
    return Kueue(server)


@pytest.fixture
def clock():
    return [NOW]


@pytest.fixture
async def checks(kueue, client, live, follow, clock):
    made = AdmissionChecks(client, live, ScheduleMetrics(), now=lambda: clock[0])
    follow(made.follow())
    follow(made.run())
    return made


async def test_a_workload_whose_pods_fit_together_is_ready(kueue, checks):
    await kueue.reserve_until("Ready", "pair")

    assert kueue.check("pair")["message"] == "its 2 pods fit together on 2 nodes"
    assert kueue.check("pair")["lastTransitionTime"] == "2027-01-15T08:00:00Z"


async def test_the_check_is_active_once_a_controller_handles_it(kueue, checks):
    def conditions():
        (check,) = kueue.server.objects("admissionchecks")
        return check.get("status", {}).get("conditions", [])

    await until(conditions)

    assert [(each["type"], each["status"]) for each in conditions()] == [("Active", "True")]


async def test_a_workload_that_does_not_fit_is_tried_again_later(kueue, checks):
    await kueue.reserve_until("Retry", "three", 3)

    check = kueue.check("three")
    assert check["message"].startswith("2 of 3 pods fit together; ")
    assert check["message"].endswith(" lacks 1 CPU on one NUMA node")
    assert check["requeueAfterSeconds"] == FIRST_RETRY


async def test_requests_default_to_limits_as_in_the_pods_of_the_template(kueue, checks):
    resources = {"limits": {"cpu": "4", "memory": "1Gi"}}
    await kueue.reserve_until(
        "Retry", "three", 3, template={"spec": {"containers": [{"name": "app", "resources": resources}]}}
    )

    assert kueue.check("three")["message"].startswith("2 of 3 pods fit together; ")


@pytest.mark.parametrize(("policy", "message"), [("single-numa-node", ""), ("strict", "is 'strict'; use none, ")])
async def test_what_the_template_demands_counts(kueue, checks, policy, message):
    spec = api_pod(pod("job", cpu="3", memory="1Gi"))["spec"]
    template = {"metadata": {"annotations": {"topology.alignup.dev/policy": policy}}, "spec": spec}
    kueue.reserve("job", 2, template=template)

    await until(lambda: kueue.state("job") == ("Retry" if message else "Ready"))
    assert message in kueue.check("job")["message"]


async def test_every_retry_takes_longer_up_to_a_limit(kueue, checks):
    for retries, seconds in ((1, 2 * FIRST_RETRY), (50, LONGEST_RETRY)):
        await kueue.reserve_until("Retry", "three", 3, retries=retries)
        assert kueue.check("three")["requeueAfterSeconds"] == seconds


async def test_two_workloads_that_fit_only_one_at_a_time_are_not_both_ready(kueue, checks):
    kueue.reserve("first")
    kueue.reserve("second")

    await until(lambda: {kueue.state("first"), kueue.state("second")} == {"Ready", "Retry"})

    assert kueue.check("second")["message"] == (
        "its 2 pods fit together on 2 nodes, but not beside the pods of default/first, which are about to start; "
        "a lacks 1 CPU on one NUMA node"
    )


async def test_a_workload_that_has_lost_its_place_does_not_hold_up_others(kueue, checks, nodes, live):
    await kueue.reserve_until("Ready", "first")
    kueue.add_condition("first", "Admitted")
    foreign = pod("foreign", cpu="4", memory="1Gi")
    nodes.create(foreign, "a")
    nodes.admit("a", foreign)
    await until(lambda: "foreign" in live.cluster.record("a").ledger.pods)

    await kueue.reserve_until("Ready", "small", 1, cpu="1")

    await kueue.reserve_until("Retry", "second", 1)
    message = kueue.check("second")["message"]
    assert message.startswith("its 1 pod fits on 1 node, but not beside the pods of default/first, default/small, ")


async def test_the_message_on_a_workload_that_fits_nowhere_names_no_others(kueue, checks):
    await kueue.reserve_until("Ready", "first", 1)

    await kueue.reserve_until("Retry", "second", 3)
    assert kueue.check("second")["message"].startswith("2 of 3 pods fit together; ")


@pytest.fixture
async def started(kueue, checks, nodes, live):
    """A workload whose pod runs."""
    await kueue.reserve_until("Ready", "first", 1)
    started = pod("first-0", cpu="4", memory="1Gi")
    document = api_pod(started, "a", phase="Running")
    document["metadata"]["annotations"] = {WORKLOAD_ANNOTATION: "first"}
    nodes.server.put(document)
    nodes.admit("a", started)
    await until(lambda: "first-0" in live.cluster.record("a").ledger.pods and live.find_pod("default", "first-0"))


async def test_pods_that_are_bound_do_not_count_twice(kueue, started):
    await kueue.reserve_until("Ready", "second", 1)


async def test_pods_whose_end_was_not_watched_do_not_count_as_bound(kueue, started, live, server):
    server.hold()
    server.remove("pods", "first-0")
    server.expire(watches=True)
    server.hold(held=False)
    await until(lambda: live.find_pod("default", "first-0") is None)
    await kueue.reserve_until("Ready", "first", 1)

    await kueue.reserve_until("Retry", "second")


async def test_an_unreadable_workload_that_passed_does_not_reject_another(kueue, checks, clock, server):
    await kueue.reserve_until("Ready", "first", 1)
    document = kueue.workload("first")
    document["spec"]["podSets"][0]["template"] = {"spec": overflowing_pod("bad")["spec"]}
    document["status"]["conditions"].append({"type": "Admitted", "status": "True"})
    server.put(document)

    await kueue.reserve_until("Ready", "second", 1)


async def test_a_workload_that_does_not_start_gives_its_place_back(kueue, checks, clock):
    await kueue.reserve_until("Ready", "first")
    clock[0] += STARTING_SECONDS + 1

    await kueue.reserve_until("Ready", "second")


async def test_a_ready_workload_that_no_longer_fits_is_tried_again_unless_it_was_admitted(kueue, checks, nodes):
    kueue.reserve("waits")
    kueue.reserve("admitted", 0)
    await until(lambda: kueue.state("waits") == kueue.state("admitted") == "Ready")
    kueue.add_condition("admitted", "Admitted")

    other = pod("other", cpu="4", memory="1Gi")
    nodes.create(other, "a")
    nodes.admit("a", other)

    await until(lambda: kueue.state("waits") == "Retry")
    assert kueue.state("admitted") == "Ready"


async def test_the_check_waits_while_a_kubelet_has_not_decided_on_an_earlier_pod(kueue, checks, nodes, live):
    other = pod("other", cpu="4", memory="1Gi")
    nodes.create(other, "a")
    await until(lambda: live.cluster.record("a").binding("other"))
    kueue.reserve("four", 4, cpu="3")

    await until(lambda: kueue.check("four")["message"])

    assert kueue.state("four") == "Pending"
    assert kueue.check("four")["message"] == f"2 of 4 pods fit together; {WAITS_FOR_CONFIRMATION} (1 of 2 nodes)"

    nodes.admit("a", other)

    await until(lambda: kueue.state("four") == "Retry")


@pytest.fixture
async def labels(nodes, live):
    """Nodes with labels, which the cluster has read: nodes and workloads are watched separately."""
    for name in "ab":
        (document,) = [each for each in nodes.server.objects("nodes") if each["metadata"]["name"] == name]
        labels = {"kubernetes.io/hostname": name, "pool": name}
        nodes.server.put({**document, "metadata": {**document["metadata"], "labels": labels}})
    await until(lambda: all("pool" in node.metadata.labels for node in live.nodes.objects.values()))


async def test_flavors_and_the_topology_assignment_limit_the_nodes(kueue, checks, labels):
    kueue.flavor("only-a", pool="a")
    await kueue.reserve_until("Retry", "flavored", assignment={"flavors": {"cpu": "only-a"}})
    assert kueue.check("flavored")["message"].startswith("1 of 2 pods fit together; ")

    await kueue.reserve_until("Ready", "spread", assignment=assign_domains(a=1, b=1))

    await kueue.reserve_until("Ready", "spread", 3, cpu="3", assignment=assign_domains(a=2, b=1))

    await kueue.reserve_until("Retry", "together", assignment=assign_domains(a=2))


async def test_every_node_is_selected_once_for_all_domains_of_a_pod_set(kueue, checks, labels, monkeypatch):
    asked = []

    def record(node, spec):
        asked.append(node.metadata.name)
        return exclusions(node, spec)

    monkeypatch.setattr(schedulable_nodes, "exclusions", record)
    await kueue.reserve_until("Retry", "spread", 4, cpu="1", assignment=assign_domains(a=1, b=1, c=1, d=1))

    assert sorted(asked) == ["a", "b"]


async def test_other_tasks_run_between_the_decisions_on_two_workloads(kueue, checks, follow, monkeypatch):
    decide, turns, answered = checks.answer, itertools.count(), []

    async def take_turns():
        while True:
            next(turns)
            await asyncio.sleep(0)

    def record(workload):
        answered.append((workload.metadata.name, next(turns)))
        return decide(workload)

    def distances():
        """The number of turns from each decision on the first to the next one, if that is on the second."""
        pairs = itertools.pairwise(answered)
        return [later - turn for (name, turn), (other, later) in pairs if (name, other) == ("first", "second")]

    for name in ("first", "second"):
        kueue.reserve(name, 1)
    await until(lambda: kueue.state("first") == kueue.state("second") == "Ready")
    follow(take_turns())
    monkeypatch.setattr(checks, "answer", record)
    kueue.flavor("any")  # all are decided again; nothing is written

    await until(distances)

    assert min(distances()) > 1


@pytest.mark.parametrize(
    ("count", "template", "problem"),
    [
        (MAX_PODS + 1, None, f"it has {MAX_PODS + 1} pods, and at most {MAX_PODS} are decided together"),
        (1, {"spec": overflowing_pod("bad")["spec"]}, "cannot add up the amounts"),
        (1, {"spec": {"containers": [NEGATIVE]}}, 'Invalid value: "-1": must be greater than or equal to 0'),
        (1, {"spec": {"containers": [{"name": "app"}], "initContainers": [{"name": "app"}]}}, "Duplicate value"),
    ],
)
async def test_a_workload_that_cannot_be_decided_on_is_rejected_in_words(kueue, checks, count, template, problem):
    await kueue.reserve_until("Rejected", "bad", count, template=template)

    assert problem in kueue.check("bad")["message"]


async def test_a_defect_in_the_decision_on_a_workload_does_not_end_the_controller(kueue, checks, monkeypatch, log):
    decide = checks.answer

    def fail_on_bad(workload):
        if workload.metadata.name == "bad":
            raise RuntimeError("a defect")
        return decide(workload)

    with monkeypatch.context() as patch:
        patch.setattr(checks, "answer", fail_on_bad)
        kueue.reserve("bad")
        await kueue.reserve_until("Ready", "pair")

        assert kueue.state("bad") == "Pending"
    await until(lambda: kueue.state("bad") in {"Ready", "Retry"})  # it is tried again, although nothing changes
    (entry,) = {(entry["event"], entry["name"]) for entry in log if entry["log_level"] == "error"}
    assert entry == ("step failed", "default/bad")


async def test_all_checks_of_a_workload_are_written_when_one_changes(kueue, checks, server, clock):
    """Server-side apply gives up the entries that an apply leaves out."""
    await kueue.reserve_until("Ready", "pair")
    clock[0] += 1
    kueue.add_check("second")
    document = kueue.workload("pair")
    document["status"]["admissionChecks"].append({"name": "second", "state": "Pending", "message": ""})
    server.put(document)

    await until(lambda: kueue.check("pair", "second")["state"] == "Ready")

    assert kueue.state("pair") == "Ready"
    assert kueue.check("pair")["lastTransitionTime"] == "2027-01-15T08:00:00Z"


async def test_workloads_without_quota_or_with_other_checks_are_left_alone(kueue, checks, server):
    kueue.reserve("finished")
    kueue.add_condition("finished", "Finished")
    kueue.reserve("foreign")
    document = kueue.workload("foreign")
    document["status"]["admissionChecks"][0]["name"] = "other"
    server.put(document)
    await kueue.reserve_until("Ready", "pair")

    assert (kueue.state("finished"), kueue.check("foreign", "other")["state"]) == ("Pending", "Pending")


class TestTopologyAssignment:
    def test_values_are_put_together(self):
        assignment = convert(
            {
                "levels": ["block", "rack"],
                "slices": [
                    {
                        "domainCount": 2,
                        "valuesPerLevel": [
                            {"universal": "b1"},
                            {"individual": {"prefix": "r", "roots": ["1", "2"], "suffix": "x"}},
                        ],
                        "podCounts": {"individual": [4, 2]},
                    },
                    {
                        "domainCount": 1,
                        "valuesPerLevel": [{"universal": "b2"}, {"universal": "r3"}],
                        "podCounts": {"universal": 1},
                    },
                ],
            },
            TopologyAssignment,
        )

        assert list(assignment.domains()) == [
            ({"block": "b1", "rack": "r1x"}, 4),
            ({"block": "b1", "rack": "r2x"}, 2),
            ({"block": "b2", "rack": "r3"}, 1),
        ]

    @given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 4), st.integers(0, 2))
    def test_too_few_values_are_a_problem(self, domains, roots, counts, levels):
        slices = {
            "domainCount": domains,
            "valuesPerLevel": [{"individual": {"roots": ["r"] * roots}}],
            "podCounts": {"individual": [1] * counts},
        }
        assignment = convert({"levels": ["l"] * levels, "slices": [slices]}, TopologyAssignment)

        if levels == 1 and min(roots, counts) >= domains:
            assert len(list(assignment.domains())) == domains
        else:
            with pytest.raises(ParseError, match="too few values"):
                list(assignment.domains())
