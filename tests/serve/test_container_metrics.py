"""Pods that the agent runs: their status, termination and metrics."""

from dataclasses import replace

import pytest

from alignup.agent.metrics import Metrics
from alignup.agent.api import AdmissionStatus
from alignup.documents.run_status import ContainerRunStatus, timestamp
from tests.agent.fake_backend import START, FakeBackend, client_of, host, manifest, run_of, running
from tests.agent.test_app import described
from tests.agent.test_decision_metrics import TWO
from tests.agent.test_metrics import read

WEB = "default-web"
POD = f"/v1/pods/{WEB}"
CRASHED = ContainerRunStatus(
    name="app",
    kind="app",
    state="ended",
    started=timestamp(START),
    ended=timestamp(START + 1),
    exit_code=137,
    reason="OOMKilled",
    message="it took too much",
)
WAITS = ContainerRunStatus(
    name="app", kind="app", state="waiting", restarts=3, reason="CrashLoopBackOff", message="back-off 40s", last=CRASHED
)


@pytest.fixture
async def agent():
    """One pod."""
    agent = FakeBackend()
    await agent.admit_document(manifest("web", cpu="1", memory="1Gi"))
    return agent


@pytest.mark.anyio
async def test_a_pod_that_the_agent_does_not_run_has_no_run_status(agent):
    async with client_of(agent) as client:
        assert (await described(client, await client.get(POD), path="/v1/pods/{uid}"))["run"] is None


@pytest.mark.anyio
async def test_a_running_pod_has_the_status_of_its_containers(agent):
    side = running("side", kind="sidecar", image="example.com/side", id="abc", pid=4711, cpus=0b1111, nodes=0b10)
    agent.run(WEB, run_of(side, WAITS, phase="Pending", ips=("10.0.0.7",), warnings=("spec.nodeName has no effect",)))
    async with client_of(agent) as client:
        listed = await described(client, await client.get("/v1/pods"))
        found = await described(client, await client.get(POD), path="/v1/pods/{uid}")

    run = found["run"]
    assert listed["pods"][0]["run"] == run
    assert (run["phase"], run["ending"], run["ips"]) == ("Pending", False, ["10.0.0.7"])
    assert run["warnings"] == ["spec.nodeName has no effect"]
    assert run["containers"][0] == {
        "name": "side",
        "kind": "sidecar",
        "state": "running",
        "ready": True,
        "restarts": 0,
        "image": "example.com/side",
        "id": "abc",
        "pid": 4711,
        "cpus": "0-3",
        "nodes": "1",
        "started": "2027-01-15T08:00:00.000Z",
        "ended": None,
        "exitCode": None,
        "reason": "",
        "message": "",
        "last": None,
    }
    last = run["containers"][1]["last"]
    assert (last["reason"], last["exitCode"], last["ended"]) == ("OOMKilled", 137, "2027-01-15T08:00:01.000Z")


@pytest.mark.anyio
async def test_a_pod_that_ran_to_completion_is_finished(agent):
    agent.run(WEB, run_of(CRASHED, phase="Failed", reason="DeadlineExceeded"))
    agent.known[WEB] = replace(agent.known[WEB], status=AdmissionStatus.FINISHED)
    async with client_of(agent) as client:
        found = await described(client, await client.get(POD), path="/v1/pods/{uid}")

    assert (found["status"], found["run"]["reason"]) == ("finished", "DeadlineExceeded")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("query", "grace"),
    [pytest.param("", None, id="in its own time"), pytest.param("?grace=0", 0, id="at once")],
)
async def test_a_running_pod_terminates_before_it_is_released(agent, query, grace):
    agent.run(WEB, run_of())
    async with client_of(agent) as client:
        response = await client.delete(f"{POD}{query}")
        document = await described(client, response, path="/v1/pods/{uid}")
        still = await client.get(POD)
        agent.remove(WEB)
        gone = await client.get(POD)

    assert (response.status_code, document["pod"]["run"]["ending"], agent.graces) == (202, True, [grace])
    assert (still.status_code, gone.status_code) == (200, 404)


@pytest.mark.anyio
@pytest.mark.parametrize("grace", ["-1", "1.5", "soon", str(1 << 31)])
async def test_an_invalid_grace_period_is_rejected(agent, grace):
    async with client_of(agent) as client:
        response = await client.delete(f"{POD}?grace={grace}")

        assert response.status_code == 400
        document = await described(client, response, path="/v1/pods/{uid}")
        assert [error["field"] for error in document["errors"]] == ["grace"]
    assert WEB in agent.known


@pytest.mark.anyio
async def test_the_runtime_is_reported_with_its_orphan_sandboxes(agent):
    async with client_of(agent) as client:
        none = await described(client, await client.get("/v1/runtime"))
        agent.report = RuntimeStatus(
            runtime=RuntimeInfo(
                name="containerd",
                version="1.6.20",
                endpoint="/run/containerd.sock",
                ready=True,
                network="host",
                others=2,
            ),
            strays=(
                OrphanSandbox(id="abc", pod="shop/old", uid="u1", containers=("app",), why="no such pod is known"),
            ),
            problems=("it is slow",),
        )
        found = await described(client, await client.get("/v1/runtime"))

    assert none == {"runtime": None, "strays": [], "problems": []}
    assert found == {
        "runtime": {
            "name": "containerd",
            "version": "1.6.20",
            "endpoint": "/run/containerd.sock",
            "ready": True,
            "network": "host",
            "others": 2,
        },
        "strays": [{"id": "abc", "pod": "shop/old", "uid": "u1", "containers": ["app"], "why": "no such pod is known"}],
        "problems": ["it is slow"],
    }


def test_containers_are_counted_by_state():
    on = host()
    metrics = Metrics(lambda: on)
    before = set(read(metrics))
    runs = [(TWO, run_of(running("side", restarts=2), WAITS))]
    metrics.show_containers(lambda: runs)

    busy, text = read(metrics), metrics.text().decode()
    runs.clear()
    idle = read(metrics)

    assert not [key for key in before if "container" in key[0] and key[0].startswith("alignup_")]
    states = ("ended", "running", "waiting")
    assert [busy["alignup_containers", state] for state in states] == [0, 1, 1]
    assert [idle["alignup_containers", state] for state in states] == [0, 0, 0]
    restarts = {key[1:]: value for key, value in busy.items() if key[0] == "alignup_container_restarts_total"}
    assert restarts == {("side", TWO.namespace, TWO.name): 2, ("app", TWO.namespace, TWO.name): 3}
    assert "# TYPE alignup_container_restarts_total counter\n" in text
