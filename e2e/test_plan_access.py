"""Who may create which Plan, and what of it may change, by a real API server with our definition and policy."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from alignup.documents.plans import DEADLINE_SECONDS
from e2e import control_plane
from e2e.api import Api, RefusedError, until
from e2e.control_plane import STRANGER
from e2e.marks import needs
from e2e.planned_cluster import install_plans

pytestmark = needs(control_plane.missing())

PLANS = "/apis/alignup.dev/v1alpha1/plans"
EVICT = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
FORBIDDEN = 403
LIMIT = 20  #: pods about which the policy asks


def plan(*pods: str, **spec: object) -> dict[str, Any]:
    """Return a Plan that evicts *pods*, ``NAMESPACE/NAME``, and admits another pod."""
    steps: list[dict[str, Any]] = []
    for pod in (*pods, "forbidden/not-evicted"):
        namespace, name = pod.split("/")
        planned = {"namespace": namespace, "name": name, "uid": f"uid-{name}"}
        steps.append({"action": "Evict" if pod in pods else "Admit", "pod": planned, "node": "a"})
    kind = {"apiVersion": "alignup.dev/v1alpha1", "kind": "Plan"}
    return {**kind, "metadata": {"generateName": "plan-"}, "spec": {"steps": steps, **spec}}


@pytest.fixture(scope="module")
def api(api: Api) -> Api:
    """A stranger may write plans, and evict the pods of two namespaces and ``named/one``."""
    install_plans(api)
    rule = {"apiGroups": ["alignup.dev"], "resources": ["plans", "plans/status"], "verbs": ["*"]}
    api.allow_stranger("plans", rule)
    for namespace, rule in {"one": EVICT, "two": EVICT, "named": {**EVICT, "resourceNames": ["one"]}}.items():
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        api.allow_stranger("evict", rule, namespace=namespace)
    until("the policy is enforced", lambda: "the creator" in refusal(api, plan("forbidden/x")))
    return api


def refusal(api: Api, document: dict[str, Any], token: str = STRANGER) -> str:
    """Create a plan; return why it is refused (empty: it is created)."""
    try:
        api.request("POST", PLANS, document, token=token)
    except RefusedError as error:
        return str(error) if error.status == FORBIDDEN else f"another error: {error}"
    return ""


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([], id="none"),
        pytest.param(["one/a"], id="one"),
        pytest.param([f"one/p{number}" for number in range(10)] + [f"two/p{number}" for number in range(10)], id="20"),
        pytest.param(["named/one"], id="by name"),
    ],
)
def test_who_may_evict_all_pods_of_a_plan_may_create_it(api: Api, pods: Sequence[str]) -> None:
    assert refusal(api, plan(*pods)) == ""


@pytest.mark.parametrize("place", range(LIMIT))
def test_one_pod_that_its_creator_may_not_evict_is_enough_to_refuse_a_plan(api: Api, place: int) -> None:
    pods = [f"one/p{number}" for number in range(LIMIT)]
    pods[place] = ("forbidden/x", "named/other")[place % 2]

    refused = refusal(api, plan(*pods))

    assert "the creator of a Plan must be allowed to evict its pods: no permission to create pods/eviction" in refused
    assert pods[place] in refused


def test_a_larger_plan_needs_the_permission_for_all_namespaces(api: Api) -> None:
    pods = [f"one/p{number}" for number in range(LIMIT + 1)]

    assert "more than 20 pods needs the permission to create pods/eviction in all namespaces" in refusal(
        api, plan(*pods)
    )
    assert refusal(api, plan(*pods), control_plane.ADMIN) == ""
    most = [f"forbidden/p{number}" for number in range(399)]
    assert refusal(api, plan(*most), control_plane.ADMIN) == ""


def test_only_paused_can_be_changed(api: Api) -> None:
    created = api.request("POST", PLANS, plan("one/a"), token=STRANGER)
    path = f"{PLANS}/{created['metadata']['name']}"
    assert created["spec"]["deadlineSeconds"] == DEADLINE_SECONDS

    for paused in (True, False):
        patched = api.merge(path, {"spec": {"paused": paused}}, token=STRANGER)
        assert patched["spec"]["paused"] is paused
    for change in (
        {"deadlineSeconds": 3600},
        {"steps": plan("one/b")["spec"]["steps"]},
        {"allowPreemption": True},
        {"allowLocalVolumes": True},
        {"exempt": ["one"]},
    ):
        with pytest.raises(RefusedError, match=r"422.*only paused can be changed; create another Plan"):
            api.merge(path, {"spec": change}, token=STRANGER)
    with pytest.raises(RefusedError, match="422"):
        api.merge(path, {"spec": None}, token=STRANGER)


def test_the_status_is_a_subresource(api: Api) -> None:
    created = api.request("POST", PLANS, {**plan("one/a"), "status": {"phase": "Succeeded"}})
    path = f"{PLANS}/{created['metadata']['name']}"
    assert "status" not in created

    status = {"phase": "Running", "evicted": 1, "observedGeneration": 1, "steps": [{"phase": "Done"}]}
    written = api.merge(f"{path}/status", {"status": status})

    assert (written["status"], written["metadata"]["generation"]) == (status, 1)
    with pytest.raises(RefusedError, match="422"):
        api.merge(f"{path}/status", {"status": {"phase": "Lost"}})


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"steps": []}, id="no steps"),
        pytest.param({"deadlineSeconds": 0}, id="no time"),
        pytest.param({"steps": plan(*[f"one/p{number}" for number in range(400)])["spec"]["steps"]}, id="401 steps"),
        pytest.param(
            {"steps": [{**plan("one/a")["spec"]["steps"][0], "replacement": True}]}, id="a replacement is evicted"
        ),
    ],
)
def test_invalid_plans_are_refused(api: Api, spec: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="422"):
        api.request("POST", PLANS, plan("one/a", **spec))


@needs(control_plane.missing_kubectl())
def test_kubectl_lists_waits_for_and_deletes_plans(api: Api) -> None:
    name = api.request("POST", PLANS, plan("one/a"))["metadata"]["name"]
    complete = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Succeeded", "evicted": 1, "message": "1 pod was evicted", "conditions": [complete]}
    api.merge(f"{PLANS}/{name}/status", {"status": status})

    head, line = api.kubectl("get", f"plan/{name}").splitlines()
    assert head.split() == ["NAME", "PHASE", "EVICTED", "MESSAGE", "AGE"]
    assert line.split()[:3] == [name, "Succeeded", "1"]
    assert "1 pod was evicted" in line
    assert api.kubectl("wait", "--for=condition=Complete", f"plan/{name}", "--timeout=60s").endswith("condition met\n")
    assert json.loads(api.kubectl("get", "plans.alignup.dev", name, "-o", "json"))["kind"] == "Plan"
    api.kubectl("patch", "plan", name, "--type=merge", "-p", '{"spec": {"paused": true}}')
    api.kubectl("delete", f"plan/{name}")
    assert api.get(f"{PLANS}/{name}") is None
