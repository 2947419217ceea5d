"""Pods as people see them: which one is meant, and how it is in a word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.cli import pod_status
from alignup.cli.app import InputError
from alignup.cli.client import AgentError
from alignup.schema.api import ContainerRunStatus, PodRunStatus
from alignup.serve import json_views
from tests.serve.agents import run_of, running

UP = running()
UNREADY = running(ready=False)
WAITS = ContainerRunStatus(name="app", kind="app", state="waiting", reason="ContainerCreating")
CRASHING = ContainerRunStatus(name="app", kind="app", state="waiting", reason="CrashLoopBackOff", restarts=4)
NEXT = ContainerRunStatus(name="app", kind="app", state="waiting", reason="PodInitializing")
ENDED = ContainerRunStatus(name="app", kind="app", state="ended", exit_code=0, reason="Completed")
FAILED = ContainerRunStatus(name="app", kind="app", state="ended", exit_code=3, reason="Error")
KILLED = ContainerRunStatus(name="app", kind="app", state="ended", exit_code=137)


def first(state, **how):
    return ContainerRunStatus(**{"name": "setup", "kind": "init", "state": state} | how)


def side(**how):
    return running("side", kind="sidecar", **how)


DONE = first("ended", exit_code=0, reason="Completed")
PREPARING = first("running")


def pod(run: PodRunStatus | None, *, status="admitted", position=None):
    told = None if run is None else json_views.of_run(run)
    return {"uid": "u", "name": "web", "namespace": "shop", "status": status, "position": position, "run": told}


@pytest.mark.parametrize(
    ("run", "status", "ready", "restarts"),
    [
        pytest.param(run_of(UP), "Running", "1/1", "0", id="one that runs"),
        pytest.param(run_of(UNREADY), "Running", "0/1", "0", id="one that is not ready yet"),
        pytest.param(run_of(WAITS, phase="Pending"), "ContainerCreating", "0/1", "0", id="one that is made"),
        pytest.param(run_of(UP, CRASHING), "CrashLoopBackOff", "1/2", "4", id="one that ends again and again"),
        pytest.param(run_of(ENDED, phase="Succeeded"), "Completed", "0/1", "0", id="one that is done"),
        pytest.param(run_of(FAILED, phase="Failed"), "Error", "0/1", "0", id="one that failed"),
        pytest.param(run_of(KILLED, phase="Failed"), "ExitCode:137", "0/1", "0", id="one that ended, nobody says why"),
        pytest.param(run_of(ENDED, FAILED, phase="Failed"), "Completed", "0/2", "0", id="the first reason counts"),
        pytest.param(run_of(ENDED, UP), "NotReady", "1/2", "0", id="one that runs on in part"),
        pytest.param(run_of(UP, ending=True), "Terminating", "1/1", "0", id="one that ends"),
        pytest.param(run_of(FAILED, phase="Failed", ending=True), "Error", "0/1", "0", id="one that has ended is over"),
        pytest.param(PodRunStatus(phase="Pending"), "Pending", "0/0", "0", id="one of which nothing is there yet"),
        pytest.param(PodRunStatus(phase="Failed", reason="Evicted"), "Evicted", "0/0", "0", id="one that was thrown out"),
        pytest.param(run_of(PREPARING, NEXT, phase="Pending"), "Init:0/1", "0/1", "0", id="one that is prepared"),
        pytest.param(
            run_of(DONE, first("waiting", reason="PodInitializing"), NEXT, phase="Pending"),
            "Init:1/2",
            "0/1",
            "0",
            id="half prepared",
        ),
        pytest.param(
            run_of(first("waiting", reason="CrashLoopBackOff", restarts=2), NEXT, phase="Pending"),
            "Init:CrashLoopBackOff",
            "0/1",
            "2",
            id="one that cannot be prepared",
        ),
        pytest.param(
            run_of(first("ended", exit_code=1, reason="Error"), NEXT, phase="Failed"),
            "Init:Error",
            "0/1",
            "0",
            id="one whose preparation failed",
        ),
        pytest.param(run_of(side(restarts=3), UP), "Running", "2/2", "3", id="a sidecar counts with those that stay"),
        pytest.param(run_of(side(), NEXT, phase="Pending"), "PodInitializing", "1/2", "0", id="its turn comes now"),
        pytest.param(run_of(side(state="ended", exit_code=1), UP), "Running", "2/2", "0", id="a sidecar ended later"),
        pytest.param(run_of(first("ended", exit_code=0, restarts=5), UP), "Running", "1/1", "0", id="long prepared"),
    ],
)  # fmt: skip
def test_a_pod_is_told_of_as_kubectl_does(run, status, ready, restarts):
    found = pod(run)

    assert (pod_status.status(found), pod_status.ready(found), pod_status.restarts(found)) == (status, ready, restarts)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        pytest.param(pod(None), "admitted", id="admitted"),
        pytest.param(pod(None, status="waiting", position=2), "waiting (2)", id="in line"),
        pytest.param(
            pod(PodRunStatus(phase="Pending"), status="waiting", position=1), "waiting (1)", id="in line to be run"
        ),
    ],
)
def test_a_pod_that_nobody_runs_is_told_as_it_stands(found, status):
    assert pod_status.status(found) == status
    assert {
        pod_status.ready(pod(None)),
        pod_status.restarts(pod(None)),
        pod_status.ips(pod(None)),
        pod_status.cpus(pod(None)),
    } == {"-"}


def test_addresses_and_cpus_are_for_who_looks_closer():
    found = pod(run_of(running(cpus=0b1100), running("side"), ENDED, ips=("10.0.0.7", "fd00::7")))

    assert pod_status.ips(found) == "10.0.0.7,fd00::7"
    assert pod_status.cpus(found) == "app:2-3 side:any"


@pytest.mark.parametrize("said", ["u", "web", "shop/web"])
def test_a_pod_is_called_by_any_of_its_names(said):
    assert pod_status.find_pod(said, [pod(None)])["uid"] == "u"


def test_a_pod_has_to_be_one():
    with pytest.raises(AgentError, match="no pod shop"):
        pod_status.find_pod("shop", [pod(None)])
    with pytest.raises(InputError, match="could be any of 2"):
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
def test_every_pod_is_told_of_in_one_word(run):
    found = pod(run)

    assert len(pod_status.status(found).split()) == 1
    ready, _, staying = pod_status.ready(found).partition("/")
    assert int(ready) <= int(staying) == sum(one.kind != "init" for one in run.containers)
    assert int(pod_status.restarts(found)) <= sum(one.restarts for one in run.containers)
