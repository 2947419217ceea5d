"""Warnings about pods that are created: what can never run, and likely mistakes; nothing is ever denied."""

import asyncio
import json

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.placement.pod_findings import FindingLevel, PodFinding, host_findings
from alignup.schedule.gate import warning_admission
from alignup.schedule.gate.admission import webhook_app
from alignup.schedule.gate.metrics import GateMetrics
from alignup.schedule.gate.service import WARN_PATH
from alignup.schedule.gate.warning_admission import MAX_CHARACTERS, WarningReviews, format_warning
from alignup.web.asgi_server import serve_app
from alignup.web.metrics import metrics_lines
from alignup.web.sockets import tcp_socket
from tests.align.hosts import pod as held_pod
from tests.deadlines import until
from tests.observe.kubelets import ObservedKubelet
from tests.schedule.gate.test_admission import owned, review

pytestmark = pytest.mark.anyio

DEPLOYMENTS = {"group": "apps", "version": "v1", "resource": "deployments"}
NEVER = "no node of this cluster would ever admit it"


def spec(cpu="2", *, containers=1, limits=None, **more):
    amounts = {"cpu": cpu, "memory": "1Gi", **(limits or {})}
    resources = {"requests": amounts, "limits": amounts}
    listed = [{"name": f"app-{number}", "image": "app:1", "resources": resources} for number in range(containers)]
    return {"containers": listed, **more}


def pod(cpu="2", *, metadata=None, **more):
    metadata = {"name": "web", "namespace": "ml", **(metadata or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec(cpu, **more)}


def deployment(cpu="2", *, metadata=None, **more):
    template = {"metadata": {"labels": {"app": "web"}, **(metadata or {})}, "spec": spec(cpu, **more)}
    selector = {"matchLabels": {"app": "web"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "ml", "uid": "1"},
        "spec": {"replicas": 3, "selector": selector, "template": template},
    }


class Asked:
    """The webhook; *codes* are those that it counted."""

    def __init__(self, live) -> None:
        self.codes: list[str] = []
        self.reviews = WarningReviews(live, self.codes.append)

    def __call__(self, obj, **request):
        resource = DEPLOYMENTS if obj and obj.get("kind") == "Deployment" else None
        request = {"resource": resource} | request if resource else request
        answered = json.loads(self.reviews.answer(json.dumps(review(obj, **request)).encode()))
        response = answered["response"]
        assert (response["uid"], response["allowed"], "patch" in response) == ("7", True, False)
        warnings = response.get("warnings", [])
        assert [warning.partition(": ")[0] for warning in warnings] == self.codes[-len(warnings) :] * bool(warnings)
        assert all(len(warning) <= MAX_CHARACTERS for warning in warnings)
        return warnings


@pytest.fixture
async def ask(live):
    """Ask about an object; the answer is its warnings. Nodes ``a`` and ``b`` have NUMA nodes of 3 and 4 CPUs."""
    return Asked(live)


async def add_node(cluster, live, name, *, report=None, **changes):
    cluster.add(name, **(report or {}))
    cluster.kubelets[name] = kubelet = ObservedKubelet(**changes)
    cluster.report(name)
    await until(lambda: (record := live.cluster.record(name)) and record.model.machine.cpus == kubelet.machine.cpus)
    settings = kubelet.host.settings
    await until(lambda: live.cluster.record(name).model.settings.topology == settings.topology)


@pytest.mark.parametrize("made", [pod, deployment])
async def test_what_no_node_can_ever_admit_is_warned_of_with_the_smallest_change_the_second_time(ask, follow, made):
    (first,) = ask(made("5"))
    assert first.startswith(f"TopologyAffinityError: {NEVER}: ")

    follow(ask.reviews.run())
    await until(lambda: ask(made("5"))[0] != first)

    (second,) = ask(made("5"))
    assert second.startswith(f"{first}; ")
    assert "4" in second.removeprefix(first)
    assert ask(made("4")) == []


async def test_an_update_of_a_workload_is_reviewed_and_one_of_a_pod_is_not(ask):
    assert len(ask(deployment("5"), operation="UPDATE")) == 1
    assert ask(pod("5"), operation="UPDATE") == []


@pytest.mark.parametrize(
    ("obj", "request_fields"),
    [
        pytest.param(pod("5", metadata=owned("ReplicaSet", controller=True)), {}, id="of a controller"),
        pytest.param(deployment("5"), {"subResource": "scale"}, id="a subresource"),
        pytest.param(None, {"operation": "DELETE"}, id="a deletion"),
        pytest.param(pod("x"), {}, id="invalid"),
        pytest.param({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}, {}, id="without pods"),
    ],
)
async def test_other_objects_are_allowed_without_warnings(ask, obj, request_fields):
    assert ask(obj, **request_fields) == []


async def test_one_kind_of_node_is_enough(ask, cluster, live):
    await add_node(cluster, live, "large", shape="pack:2 numa:1 core:8 pu:1", report={"labels": {"size": "large"}})

    assert ask(pod("5")) == []
    (warning,) = ask(pod("9"))
    assert warning.startswith(f"TopologyAffinityError: {NEVER}")

    cluster.change("large", taints=[{"key": "x", "effect": "NoSchedule"}])
    await until(lambda: live.nodes.get("large").spec.taints)
    assert len(ask(pod("5"))) == 1
    assert ask(pod("5", tolerations=[{"key": "x", "operator": "Exists"}])) == []


async def test_nothing_is_said_of_nodes_that_are_not_known(ask, cluster, live):
    cluster.add("new", observed=False)
    await until(lambda: live.nodes.get("new"))
    assert ask(pod("5")) == []

    cluster.change("new", taints=[{"key": "x", "effect": "NoSchedule"}])
    await until(lambda: live.nodes.get("new").spec.taints)
    assert len(ask(pod("5"))) == 1


async def test_pods_that_must_wait_only_are_not_warned_of(ask, cluster, live):
    for name in "ab":
        cluster.admit(name, held_pod(f"held-{name}", cpu="4", memory="1Gi"))
    await until(lambda: all(live.cluster.record(name).ledger.pods for name in "ab"))

    assert ask(pod("4")) == []


async def test_devices_that_no_node_has(ask, cluster, live):
    wanted = pod("1", limits={"example.com/fpga": "1"})
    (warning,) = ask(wanted)
    assert warning.startswith(f"NotSchedulable: {NEVER}: ")
    assert "example.com/fpga" in warning

    cluster.change("a", allocatable={"cpu": "7", "memory": "31Gi", "pods": "110", "example.com/fpga": "1"})
    await until(lambda: "example.com/fpga" in live.nodes.get("a").status.allocatable)
    assert ask(wanted) == []


async def test_half_a_core_on_nodes_that_give_whole_ones(ask, cluster, live):
    assert ask(pod("3")) == []
    options = {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}, "systemReserved": {"cpu": "2", "memory": "64Mi"}}
    await add_node(cluster, live, "smt", shape="pack:2 numa:1 core:4 pu:2", **options)

    (warning,) = ask(pod("3"))
    assert warning.startswith("SMTAlignmentError: nodes such as smt would reject it: ")
    assert ask(pod("2")) == []
    assert ask(pod("3", nodeSelector={"kubernetes.io/hostname": "a"})) == []


async def test_likely_mistakes(ask):
    (shared,) = ask(pod("1500m"))
    (unknown,) = ask(deployment(metadata={"annotations": {"topology.alignup.dev/polcy": "x"}}))
    (qos,) = ask(deployment(resources={"requests": {"cpu": "2", "memory": "1Gi"}}))

    assert shared == "FractionalCPUs: container app-0 requests 1500m CPU, so it gets no exclusive CPUs; request 2 CPUs"
    assert unknown.startswith("UnknownAnnotation: annotation topology.alignup.dev/polcy is unknown; use one of ")
    assert qos.startswith("QoSClassDependsOnRelease: the pod is Burstable up to Kubernetes 1.36 and Guaranteed since")


async def test_there_are_three_warnings_at_most(ask):
    annotations = {f"topology.alignup.dev/{name}": "x" for name in ("a", "b", "c", "d")}

    warnings = ask(pod("5", metadata={"annotations": annotations}))

    assert [warning.partition(":")[0] for warning in warnings] == ["TopologyAffinityError", *["UnknownAnnotation"] * 2]


async def test_large_pods_are_decided_on_for_the_next(ask, follow):
    assert ask(pod("1", containers=25)) == []

    follow(ask.reviews.run())
    await until(lambda: ask(pod("1", containers=25)))


async def test_before_the_cluster_is_read_only_manifests_are_judged(nodes, client):
    from alignup.schedule.live_cluster import LiveCluster  # noqa: PLC0415

    ask = Asked(LiveCluster(client))

    assert ask(pod("5")) == []
    assert len(ask(pod("5", metadata={"annotations": {"topology.alignup.dev/policy": "best"}}))) == 1


async def test_answers_are_kept_by_shape_and_the_oldest_are_forgotten(ask, monkeypatch):
    decided = []

    def counted(host, asked):
        decided.append(asked.containers[0].resources.requests["cpu"].value())
        return host_findings(host, asked)

    monkeypatch.setattr(warning_admission, "host_findings", counted)
    monkeypatch.setattr(warning_admission, "MAX_KNOWN", 2)
    for cpus in (5, 6, 5, 7, 5, 6):
        assert len(ask(pod(str(cpus)))) == 1

    assert decided == [5, 6, 7, 6]


async def test_it_is_served_and_counted(live):
    metrics = GateMetrics()
    reviews = WarningReviews(live, metrics.warned)
    with tcp_socket(0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{WARN_PATH}"
        async with (
            serve_app(webhook_app({WARN_PATH: reviews.answer}), listener, stopping=asyncio.Event()),
            httpx2.AsyncClient(trust_env=False, verify=False) as http,
        ):
            answered = await http.post(url, json=review(deployment("5"), resource=DEPLOYMENTS))
            garbage = await http.post(url, json={"apiVersion": "v1"})

    response = answered.json()["response"]
    assert (answered.status_code, response["allowed"], len(response["warnings"])) == (200, True, 1)
    assert garbage.status_code == 400
    counted = 'alignup_webhook_warnings_total{reason="TopologyAffinityError"} 1\n'
    assert counted in "".join(metrics_lines(metrics.registry))


@given(st.text(max_size=300), st.text(max_size=300))
def test_a_warning_has_one_line_within_the_limit_and_begins_with_its_code(message, remedy):
    text = format_warning(PodFinding("NotAligned", FindingLevel.WARNING, message, remedy))

    assert len(text) <= MAX_CHARACTERS
    assert text.isprintable()
    assert text.startswith("NotAligned: ")
    if remedy.isprintable() and len(remedy) < 170:
        assert text.endswith(remedy)
