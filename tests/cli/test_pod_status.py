"""Selecting pods by name, and the columns of ``alignup ps``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.cli import pod_status
from alignup.cli.agent_client import AgentError
from alignup.cli.app import InputError
from alignup.documents import codec
from alignup.documents.run_status import ContainerRunStatus, PodRunStatus
from tests.agent.fake_backend import run_of, running

RUNNING = running()
UNREADY = running(ready=False)
CREATING = ContainerRunStatus(name="app", kind="app", state="waiting", reason="ContainerCreating")
CRASHING = ContainerRunStatus(name="app", kind="app", state="waiting", reason="CrashLoopBackOff", restarts=4)
INITIALIZING = ContainerRunStatus(name="app", kind="app", state="waiting", reason="PodInitializing")
COMPLETED = ContainerRunStatus(name="app", kind="app", state="ended", exit_code=0, reason="Completed")
FAILED = ContainerRunStatus(name="app", kind="app", state="ended", exit_code=3, reason="Error")
KILLED = ContainerRunStatus(name="app", kind="app", state="ended", exit_code=137)


def first(state, **how):
    return ContainerRunStatus(**{"name": "setup", "kind": "init", "state": state} | how)


def side(**how):
    return running("side", kind="sidecar", **how)


DONE = first("ended", exit_code=0, reason="Completed")
PREPARING = first("running")


def pod(run: PodRunStatus | None, *, status="admitted", position=None):
    document = None if run is None else codec.to_builtins(run)
    return {"uid": "u", "name": "web", "namespace": "shop", "status": status, "position": position, "run": document}


@pytest.mark.parametrize(
    ("run", "status", "ready", "restarts"),
    [
        pytest.param(run_of(RUNNING), "Running", "1/1", "0", id="running"),
        pytest.param(run_of(UNREADY), "Running", "0/1", "0", id="not ready"),
        pytest.param(run_of(CREATING, phase="Pending"), "ContainerCreating", "0/1", "0", id="being created"),
        pytest.param(run_of(RUNNING, CRASHING), "CrashLoopBackOff", "1/2", "4", id="crash loop"),
        pytest.param(run_of(COMPLETED, phase="Succeeded"), "Completed", "0/1", "0", id="completed"),
        pytest.param(run_of(FAILED, phase="Failed"), "Error", "0/1", "0", id="failed"),
        pytest.param(run_of(KILLED, phase="Failed"), "ExitCode:137", "0/1", "0", id="no reason"),
        pytest.param(run_of(COMPLETED, FAILED, phase="Failed"), "Completed", "0/2", "0", id="the first reason counts"),
        pytest.param(run_of(COMPLETED, RUNNING), "NotReady", "1/2", "0", id="partly completed"),
        pytest.param(run_of(RUNNING, ending=True), "Terminating", "1/1", "0", id="terminating"),
        pytest.param(run_of(FAILED, phase="Failed", ending=True), "Error", "0/1", "0", id="already failed"),
        pytest.param(PodRunStatus(phase="Pending"), "Pending", "0/0", "0", id="no containers yet"),
        pytest.param(PodRunStatus(phase="Failed", reason="Evicted"), "Evicted", "0/0", "0", id="evicted"),
        pytest.param(run_of(PREPARING, INITIALIZING, phase="Pending"), "Init:0/1", "0/1", "0", id="initializing"),
        pytest.param(
            run_of(DONE, first("waiting", reason="PodInitializing"), INITIALIZING, phase="Pending"),
            "Init:1/2",
            "0/1",
            "0",
            id="one of two init containers done",
        ),
        pytest.param(
            run_of(first("waiting", reason="CrashLoopBackOff", restarts=2), INITIALIZING, phase="Pending"),
            "Init:CrashLoopBackOff",
            "0/1",
            "2",
            id="init crash loop",
        ),
        pytest.param(
            run_of(first("ended", exit_code=1, reason="Error"), INITIALIZING, phase="Failed"),
            "Init:Error",
            "0/1",
            "0",
            id="init failed",
        ),
        pytest.param(run_of(side(restarts=3), RUNNING), "Running", "2/2", "3", id="a sidecar counts"),
        pytest.param(run_of(side(), INITIALIZING, phase="Pending"), "PodInitializing", "1/2", "0", id="ready to start"),
        pytest.param(run_of(side(state="ended", exit_code=1), RUNNING), "Running", "2/2", "0", id="an ended sidecar"),
        pytest.param(run_of(first("ended", exit_code=0, restarts=5), RUNNING), "Running", "1/1", "0", id="init done"),
    ],
)  # fmt: skip
def test_the_columns_are_those_of_kubectl(run, status, ready, restarts):
    found = pod(run)

    assert (pod_status.status(found), pod_status.ready(found), pod_status.restarts(found)) == (status, ready, restarts)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        pytest.param(pod(None), "admitted", id="admitted"),
        pytest.param(pod(None, status="waiting", position=2), "waiting (2)", id="waiting"),
        pytest.param(
            pod(PodRunStatus(phase="Pending"), status="waiting", position=1), "waiting (1)", id="waiting with a runtime"
        ),
    ],
)
def test_a_pod_without_a_runtime_has_the_status_of_the_agent(found, status):
    assert pod_status.status(found) == status
    assert {
        pod_status.ready(pod(None)),
        pod_status.restarts(pod(None)),
        pod_status.ips(pod(None)),
        pod_status.cpus(pod(None)),
    } == {"-"}


def test_addresses_and_cpus():
    found = pod(run_of(running(cpus=0b1100), running("side"), COMPLETED, ips=("10.0.0.7", "fd00::7")))

    assert pod_status.ips(found) == "10.0.0.7,fd00::7"
    assert pod_status.cpus(found) == "app:2-3 side:any"


@pytest.mark.parametrize("name", ["u", "web", "shop/web"])
def test_a_pod_is_found_by_any_of_its_names(name):
    assert pod_status.find_pod(name, [pod(None)])["uid"] == "u"


def test_a_name_must_match_exactly_one_pod():
    with pytest.raises(AgentError, match="pod shop not found"):
        pod_status.find_pod("shop", [pod(None)])
    with pytest.raises(InputError, match="matches 2 pods"):
        pod_status.find_pod("web", [pod(None), pod(None) | {"uid": "v"}])


containers = st.builds(
    ContainerRunStatus,
    name=st.sampled_from(["a", "b"]),
    kind=st.sampled_from(["init", "sidecar", "app"]),
    state=st.sampled_from(["waiting", "running", "ended"]),
    ready=st.booleans(),
    restarts=st.integers(0, 3),
    exit_code=st.sampled_from([None, 0, 1]),
    reason=st.sampled_from(["", "PodInitializing", "Completed", "CrashLoopBackOff"]),
)
runs = st.builds(
    PodRunStatus,
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    ending=st.booleans(),
    containers=st.lists(containers, max_size=4).map(tuple),
)


@given(runs)
def test_every_status_is_one_word(run):
    found = pod(run)

    assert len(pod_status.status(found).split()) == 1
    ready, _, staying = pod_status.ready(found).partition("/")
    assert int(ready) <= int(staying) == sum(one.kind != "init" for one in run.containers)
    assert int(pod_status.restarts(found)) <= sum(one.restarts for one in run.containers)
