"""What each token of Alignup can write, and cannot, by a real API server with everything that is deployed.

It is the table in SECURITY.md. ``ALIGNUP_KUEUE_CRDS`` names a directory with the definitions of Kueue, for its part.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from e2e import control_plane
from e2e.api import MERGE, NODES, PODS, RBAC, Api, RefusedError, until
from e2e.marks import needs
from tests.deploy.manifests import BASE, KUBERNETES, NRI_DECIDE, SCHEDULE, SCHEDULER

KUEUE = Path(os.environ.get("ALIGNUP_KUEUE_CRDS", "/nonexistent"))
pytestmark = needs(control_plane.missing() or control_plane.missing_kubectl())

FORBIDDEN = 403
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
WEBHOOK = f"{ADMISSION}/mutatingwebhookconfigurations/alignup-gate"
SYSTEM = "/api/v1/namespaces/alignup"
INSTRUCTIONS = "/apis/alignup.dev/v1alpha1/steeringinstructions"
PLANS = "/apis/alignup.dev/v1alpha1/plans"
HOST_STATES = "/apis/alignup.dev/v1alpha1/hoststates"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
CHECKS = "/apis/kueue.x-k8s.io/v1beta2/admissionchecks"
APPLY = "application/apply-patch+yaml"
SERVING = ("alignup-observer", "alignup-schedule", "alignup-scheduler", "alignup-nri")


class Write(NamedTuple):
    """One request."""

    method: str
    path: str
    body: Any = None
    content: str = MERGE


def create(path: str, **body: Any) -> Write:  # noqa: ANN401 - JSON
    return Write("POST", path, body, "application/json")


def named(name: str) -> dict[str, str]:
    return {"name": name}


def apply(path: str, kind: str) -> Write:
    """Apply an object that need not exist."""
    body = {"apiVersion": "alignup.dev/v1alpha1", "kind": kind, "metadata": named(path.rpartition("/")[2])}
    return Write("PATCH", f"{path}?fieldManager=x", body, APPLY)


HOOK = {
    "name": "x.example.com",
    "clientConfig": {"url": "https://127.0.0.1:1"},
    "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}],
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
}
PLAN = {
    "apiVersion": "alignup.dev/v1alpha1",
    "kind": "Plan",
    "metadata": {"name": "plan"},
    "spec": {"steps": [{"action": "Evict", "node": "a", "pod": {"namespace": "default", "name": "plain", "uid": "u"}}]},
}
POD = {"containers": [{"name": "a", "image": "b"}]}
#: What no serving program may do; with most of it, one has the cluster, or other accounts.
NEVER = {
    "send objects to oneself": Write(
        "PATCH", f"{ADMISSION}/mutatingwebhookconfigurations/alignup-gate", {"webhooks": []}
    ),
    "read the webhook configuration": Write("GET", f"{ADMISSION}/mutatingwebhookconfigurations/alignup-gate"),
    "create a webhook": create(f"{ADMISSION}/mutatingwebhookconfigurations", metadata=named("x"), webhooks=[HOOK]),
    "create a validating webhook": create(
        f"{ADMISSION}/validatingwebhookconfigurations", metadata=named("x"), webhooks=[HOOK]
    ),
    "remove a policy": Write("DELETE", f"{ADMISSION}/validatingadmissionpolicies/alignup-observer"),
    "remove a binding of a policy": Write("DELETE", f"{ADMISSION}/validatingadmissionpolicybindings/alignup-gate"),
    "create a Secret": create(f"{SYSTEM}/secrets", metadata=named("x")),
    "read all Secrets": Write("GET", "/api/v1/secrets"),
    "read Secrets of the namespace": Write("GET", f"{SYSTEM}/secrets"),
    "change another Secret": Write("PATCH", f"{SYSTEM}/secrets/other", {"data": {}}),
    "delete the Secret": Write("DELETE", f"{SYSTEM}/secrets/alignup-webhook"),
    "read ConfigMaps": Write("GET", "/api/v1/configmaps"),
    "create a pod": create(PODS, metadata=named("x"), spec=POD),
    "create a Job": create(
        "/apis/batch/v1/namespaces/alignup/jobs",
        metadata=named("x"),
        spec={"template": {"spec": {**POD, "restartPolicy": "Never"}}},
    ),
    "change a DaemonSet": Write("PATCH", "/apis/apps/v1/namespaces/alignup/daemonsets/alignup-observer", {"spec": {}}),
    "run a command": Write("POST", f"{PODS}/plain/exec?command=true", {}),
    "attach a container": Write("PATCH", f"{PODS}/plain/ephemeralcontainers", {"spec": {}}),
    "evict a pod": create(f"{PODS}/plain/eviction", metadata=named("plain")),
    "make a token of another account": create(f"{SYSTEM}/serviceaccounts/alignup-certificates/token", spec={}),
    "give itself a role": create(
        f"{RBAC}/clusterrolebindings",
        metadata=named("x"),
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        subjects=[{"kind": "ServiceAccount", "name": "alignup-schedule", "namespace": "alignup"}],
    ),
    "widen its role": Write("PATCH", f"{RBAC}/clusterroles/alignup-gate", {"rules": []}),
    "change a node": Write("PATCH", f"{NODES}/a", {"metadata": {"labels": {"x": "y"}}}),
    "reach a kubelet": Write("GET", f"{NODES}/a/proxy/pods"),
    "change a definition": Write(
        "PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/hoststates.alignup.dev", {"spec": {}}
    ),
    "label a namespace": Write("PATCH", "/api/v1/namespaces/default", {"metadata": {"labels": {"x": "y"}}}),
    "write a HostState of another node": apply(f"{HOST_STATES}/b", "HostState"),
    "create a SteeringInstruction of another node": create(INSTRUCTIONS, metadata=named("c")),
    "create a Plan": create(PLANS, **PLAN),
    "change a Plan": Write("PATCH", f"{PLANS}/plan", {"spec": {"paused": True}}),
    "write the status of a Plan": Write("PATCH", f"{PLANS}/plan/status", {"status": {"phase": "Running"}}),
    "report for another node": Write("PATCH", f"{INSTRUCTIONS}/b/status", {"status": {"phase": "Ready"}}),
}
#: Account → what it may not do beside that.
ALSO = {
    "alignup-observer": {
        "delete a pod": Write("DELETE", f"{PODS}/plain"),
        "patch a pod": Write("PATCH", f"{PODS}/gated", {"metadata": {"labels": {"x": "y"}}}),
        "bind a pod": create(f"{PODS}/plain/binding", metadata=named("plain"), target={"kind": "Node", "name": "a"}),
        "steer": Write("PATCH", f"{INSTRUCTIONS}/a", {"spec": {"numaNodes": "1"}}),
        "lead": create("/apis/coordination.k8s.io/v1/namespaces/alignup/leases", metadata=named("x")),
        "read a Secret": Write("GET", f"{SYSTEM}/secrets/alignup-webhook"),
    },
    "alignup-schedule": {
        "delete a pod": Write("DELETE", f"{PODS}/plain"),
        "patch a pod without the gate": Write("PATCH", f"{PODS}/plain", {"metadata": {"labels": {"x": "y"}}}),
        "change an image": Write("PATCH", f"{PODS}/gated", {"spec": {"containers": [{"name": "a", "image": "evil"}]}}),
        "bind a pod": create(f"{PODS}/plain/binding", metadata=named("plain"), target={"kind": "Node", "name": "a"}),
        "write the status of a pod": Write("PATCH", f"{PODS}/plain/status", {"status": {"phase": "Failed"}}),
        "apply a SteeringInstruction that does not exist": apply(f"{INSTRUCTIONS}/c", "SteeringInstruction"),
        "take the Lease of another": Write(
            "PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler", {"spec": {}}
        ),
    },
    "alignup-scheduler": {
        "patch a pod": Write("PATCH", f"{PODS}/plain", {"metadata": {"labels": {"x": "y"}}}),
        "read a Secret": Write("GET", f"{SYSTEM}/secrets/alignup-webhook"),
    },
    "alignup-nri": {
        "delete a pod": Write("DELETE", f"{PODS}/plain"),
        "patch a pod": Write("PATCH", f"{PODS}/gated", {"metadata": {"labels": {"x": "y"}}}),
        "read a Secret": Write("GET", f"{SYSTEM}/secrets/alignup-webhook"),
        "write a HostState": apply(f"{HOST_STATES}/a", "HostState"),
    },
    "alignup-certificates": {
        "change another webhook": Write("PATCH", f"{ADMISSION}/mutatingwebhookconfigurations/other", {"webhooks": []}),
        "list webhooks": Write("GET", f"{ADMISSION}/mutatingwebhookconfigurations"),
        "create a Secret elsewhere": create("/api/v1/namespaces/kube-system/secrets", metadata=named("x")),
        **{
            name: write
            for name, write in NEVER.items()
            if name not in {"send objects to oneself", "read the webhook configuration", "create a Secret"}
        },
    },
}
#: What they can do: otherwise the lists above would be true of an account without any rights.
CAN = {
    "alignup-observer": {
        "its HostState": apply(f"{HOST_STATES}/a", "HostState"),
        "report": Write("PATCH", f"{INSTRUCTIONS}/a/status", {"status": {"phase": "Done", "observedGeneration": 1}}),
        "list pods": Write("GET", "/api/v1/pods"),
    },
    "alignup-schedule": {
        "annotate a gated pod": Write("PATCH", f"{PODS}/gated", {"metadata": {"annotations": {"alignup.dev/x": "y"}}}),
        "steer": Write("PATCH", f"{INSTRUCTIONS}/a", {"spec": {}}),
        "its Secret": Write("PATCH", f"{SYSTEM}/secrets/alignup-webhook", {"data": {}}),
    },
    "alignup-scheduler": {
        "steer": Write("PATCH", f"{INSTRUCTIONS}/a", {"spec": {}}),
        "write the status of a pod": Write("PATCH", f"{PODS}/gated/status", {"metadata": {"labels": {}}}),
        "bind a pod": create(f"{PODS}/other/binding", metadata=named("other"), target={"kind": "Node", "name": "a"}),
    },
    "alignup-nri": {"list pods": Write("GET", "/api/v1/pods")},
    "alignup-certificates": {
        "the webhook": Write("PATCH", WEBHOOK, {"metadata": {}}),
        "its Secret": Write("PATCH", f"{SYSTEM}/secrets/alignup-webhook", {"data": {}}),
    },
}


@pytest.fixture(scope="module")
def api(api: Api) -> Api:
    """An API server with everything that is deployed, steering and Kueue included."""
    files = [KUBERNETES / "steer" / "access.yaml"]
    if KUEUE.is_dir():
        for name in ("workloads", "admissionchecks"):
            api.define(KUEUE / f"kueue.x-k8s.io_{name}.yaml")
    folders = [BASE, SCHEDULE, SCHEDULER, NRI_DECIDE, *([KUBERNETES / "kueue"] if KUEUE.is_dir() else [])]
    for option, path in [*(("-k", folder) for folder in folders), *(("-f", file) for file in files)]:
        api.kubectl("apply", option, path)
    for name in "ab":
        api.request("POST", NODES, {"metadata": {"name": name}})
        until("instructions are served", lambda: api.get(INSTRUCTIONS) is not None)
        api.request("POST", INSTRUCTIONS, _instruction(name))
    for name, gates in (("plain", []), ("other", []), ("gated", [{"name": "alignup.dev/placement"}])):
        api.request("POST", PODS, {"metadata": {"name": name}, "spec": {**POD, "schedulingGates": gates}})
    until("plans are served", lambda: api.get(PLANS) is not None)
    api.request("POST", PLANS, PLAN)
    for name in ("alignup-webhook", "other"):
        api.request("POST", f"{SYSTEM}/secrets", {"metadata": {"name": name}})
    other = {"metadata": {"name": "other"}, "webhooks": []}
    api.request("POST", f"{ADMISSION}/mutatingwebhookconfigurations", other)
    return api


def _instruction(name: str) -> dict[str, Any]:
    return {"apiVersion": "alignup.dev/v1alpha1", "kind": "SteeringInstruction", "metadata": {"name": name}}


@pytest.fixture(scope="module")
def token(api: Api) -> Callable[[str], str]:
    """Return the token of an account, on node ``a``, once the API server enforces the policies for it."""
    make = partial(api.account_token, node="a")
    observer, schedule = make("alignup-observer"), make("alignup-schedule")
    lies = create(INSTRUCTIONS, metadata=named("d"), apiVersion="alignup.dev/v1alpha1", kind="SteeringInstruction")
    until("the policy about observers is enforced", lambda: send(api, lies, observer) == FORBIDDEN)
    label = Write("PATCH", f"{PODS}/plain", {"metadata": {"annotations": {"alignup.dev/x": "y"}}})
    until("the policy about gated pods is enforced", lambda: send(api, label, schedule) == FORBIDDEN)
    return make


def send(api: Api, write: Write, token: str) -> int:
    """Return the status of the answer."""
    body = write.body
    if write.method == "POST" and isinstance(body, dict) and write.path == INSTRUCTIONS:
        body = {"apiVersion": "alignup.dev/v1alpha1", "kind": "SteeringInstruction", **body}
    try:
        api.request(write.method, write.path, body, content=write.content, token=token)
    except RefusedError as error:
        return error.status
    return 200


@pytest.mark.parametrize("account", [*SERVING, "alignup-certificates"])
def test_a_stolen_token_cannot(api: Api, token: Callable[[str], str], account: str) -> None:
    stolen = token(account)
    writes = (NEVER if account in SERVING else {}) | ALSO[account]

    statuses = {name: send(api, write, stolen) for name, write in writes.items()}

    assert {name: status for name, status in statuses.items() if status != FORBIDDEN} == {}


@pytest.mark.parametrize("account", [*SERVING, "alignup-certificates"])
def test_its_account_can_do_its_work(api: Api, token: Callable[[str], str], account: str) -> None:
    statuses = {name: send(api, write, token(account)) for name, write in CAN[account].items()}

    assert {name: status for name, status in statuses.items() if status != 200} == {}


def test_a_service_that_carries_out_plans_can_evict_pods_and_create_no_plan(
    api: Api, token: Callable[[str], str]
) -> None:
    api.request("POST", PODS, {"metadata": {"name": "planned"}, "spec": POD})
    api.install(KUBERNETES / "plans" / "access.yaml")
    stolen = token("alignup-schedule")
    can = {
        "list plans": Write("GET", PLANS),
        "write the status of a Plan": NEVER["write the status of a Plan"],
        "evict a pod": create(f"{PODS}/planned/eviction", metadata=named("planned")),
        "list volumes": Write("GET", "/api/v1/persistentvolumes"),
        "list Jobs": Write("GET", "/apis/batch/v1/jobs"),
    }
    evictions = {"evict a pod", "write the status of a Plan"}
    cannot = {name: write for name, write in (NEVER | ALSO["alignup-schedule"]).items() if name not in evictions}
    try:
        until("the role is in force", lambda: send(api, can["list plans"], stolen) == 200)
        allowed = {name: send(api, write, stolen) for name, write in can.items()}
        refused = {name: send(api, write, stolen) for name, write in cannot.items()}
    finally:
        for kind in ("clusterroles", "clusterrolebindings"):
            api.request("DELETE", f"{RBAC}/{kind}/alignup-plans")
        until("the role is gone", lambda: send(api, can["list plans"], stolen) == FORBIDDEN)
    assert {name: status for name, status in allowed.items() if status >= 300} == {}
    assert {name: status for name, status in refused.items() if status != FORBIDDEN} == {}


@pytest.mark.skipif(not KUEUE.is_dir(), reason="set ALIGNUP_KUEUE_CRDS to the directory of Kueue's definitions")
def test_of_a_workload_only_our_admission_check_can_be_written(api: Api, token: Callable[[str], str]) -> None:
    template = {"spec": {**POD, "restartPolicy": "Never"}}
    spec = {"podSets": [{"name": "main", "count": 1, "template": template}]}
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}
    api.request("POST", WORKLOADS, {**kind, "metadata": {"name": "job"}, "spec": spec})
    checks = [check("alignup", "Pending"), check("other", "Pending")]
    path = f"{WORKLOADS}/job/status"
    stolen = token("alignup-schedule")
    kept = {"admissionChecks": checks, "conditions": [CONDITION]}
    refused: dict[str, dict[str, Any]] = {
        "another check": {"admissionChecks": [check("alignup", "Pending"), check("other", "Ready")]},
        "one check less": {"admissionChecks": checks[:1]},
        "one check more": {"admissionChecks": [*checks, check("third", "Ready")]},
        "a condition": {"conditions": [{**CONDITION, "status": "False"}]},
        "no conditions": {"conditions": None},
        "quota": {"admission": {"clusterQueue": "a", "podSetAssignments": [{"name": "main"}]}},
    }
    ours = Write("PATCH", path, {"status": {"admissionChecks": [check("alignup", "Ready"), checks[1]]}})

    def write(status: dict[str, Any]) -> int:
        return send(api, Write("PATCH", path, {"status": {**kept, **status}}), stolen)

    def enforced() -> bool:
        api.merge(path, {"status": kept})  # undoes an earlier attempt: writing the same again is no change
        return write(refused["another check"]) == FORBIDDEN

    until("the policy about workloads is enforced", enforced)
    assert {name: write(status) for name, status in refused.items()} == dict.fromkeys(refused, FORBIDDEN)
    assert send(api, Write("PATCH", f"{WORKLOADS}/job", {"spec": {"priority": 9}}), stolen) == FORBIDDEN
    assert send(api, ours, stolen) == 200
    applied = {**kind, "metadata": named("job"), "status": {"admissionChecks": [check("alignup", "Retry")]}}
    assert send(api, Write("PATCH", f"{path}?fieldManager=x&force=true", applied, APPLY), stolen) == 200
    activate = {"status": {"conditions": [CONDITION]}}
    api.request("POST", CHECKS, {**kind, "kind": "AdmissionCheck", "metadata": named("other"), "spec": CONTROLLER})
    assert send(api, Write("PATCH", f"{CHECKS}/alignup/status", activate), stolen) == 200
    assert send(api, Write("PATCH", f"{CHECKS}/other/status", activate), stolen) == FORBIDDEN


CONTROLLER = {"controllerName": "example.com/other"}
CONDITION = {
    "type": "Active",
    "status": "True",
    "reason": "Test",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def check(name: str, state: str) -> dict[str, str]:
    return {"name": name, "state": state, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
