"""The status of a pod: states, reasons and counts in Kubernetes' words."""

from dataclasses import replace

import pytest

from alignup.agent.pods.actions import compute_pod_actions
from alignup.agent.pods.cpusets import CpusetPlacement
from alignup.agent.pods.pod_state import Backoff, PodStatus, PodTermination, ProbeStatus, WorkerState
from alignup.agent.pods.status import StatusInputs, generate_pod_run
from alignup.documents.run_status import ContainerRunStatus, PodRunStatus, timestamp
from alignup.kubernetes.podspec.types import PodSpec
from tests.agent.pods.statuses import (
    APP,
    CREATED,
    EXITED,
    NEVER,
    NOW,
    ON_FAILURE,
    UNKNOWN,
    container,
    init,
    instance,
    pod,
    pod_status,
    sandbox,
    sidecar,
)

JUST_NOW = (NOW - 7, NOW - 4)
LONG_AGO = (NOW - 900, NOW - 800)
DEAD = sandbox(ready=False)
FAILED = {"app": Backoff(until=NOW + 9, reason="ErrImagePull", message="no route")}
EXPIRED = {"app": Backoff(until=NOW, reason="ErrImagePull", message="no route")}
LONG_EXPIRED = {"app": Backoff(until=NOW - 2000, reason="ErrImagePull", message="no route")}
TERMINATING = PodTermination(since=NOW - 1, grace=30)


def run_status(
    spec: PodSpec, status: PodStatus, state: WorkerState | None = None, **placements: CpusetPlacement
) -> PodRunStatus:
    state = state or WorkerState()
    found = compute_pod_actions(spec, status, state, now=NOW)
    inputs = StatusInputs(
        spec=spec, status=status, state=state, actions=found, warnings=("ignored",), placements=placements
    )
    return generate_pod_run(inputs)


def first(spec: PodSpec, status: PodStatus, state: WorkerState | None = None) -> ContainerRunStatus:
    return run_status(spec, status, state).containers[0]


@pytest.mark.parametrize(
    ("spec", "status", "state", "reason"),
    [
        pytest.param(pod(), PodStatus(), WorkerState(), "ContainerCreating", id="it is about to start"),
        pytest.param(
            pod(APP, init("i")), PodStatus(), WorkerState(), "PodInitializing", id="init containers come first"
        ),
        pytest.param(
            pod(), pod_status(instance("app", CREATED)), WorkerState(), "ContainerCreating", id="it is created"
        ),
        pytest.param(pod(), pod_status(), WorkerState(backoffs=FAILED), "ImagePullBackOff", id="its image pull failed"),
        pytest.param(pod(), pod_status(), WorkerState(backoffs=EXPIRED), "ErrImagePull", id="the pull is retried"),
        pytest.param(
            pod(),
            pod_status(instance("app", EXITED, 1, ran=LONG_AGO)),
            WorkerState(backoffs=FAILED),
            "ImagePullBackOff",
            id="a restart whose pull fails",
        ),
        pytest.param(
            pod(),
            pod_status(instance("app", EXITED, 1, ran=LONG_AGO)),
            WorkerState(backoffs=EXPIRED),
            "ErrImagePull",
            id="a restart whose pull is retried",
        ),
        pytest.param(
            pod(),
            pod_status(instance("app", EXITED, attempt=1, ran=JUST_NOW)),
            WorkerState(),
            "CrashLoopBackOff",
            id="it crashes repeatedly",
        ),
        pytest.param(
            pod(),
            pod_status(instance("app", CREATED)),
            WorkerState(backoffs=FAILED),
            "ImagePullBackOff",
            id="created, but its start failed",
        ),
        pytest.param(
            pod(),
            pod_status(instance("app", CREATED)),
            WorkerState(backoffs=LONG_EXPIRED),
            "ContainerCreating",
            id="an earlier failure does not count",
        ),
    ],
)
def test_waiting_containers(spec, status, state, reason):
    found = first(spec, status, state)

    assert (found.state, found.reason, found.ready) == ("waiting", reason, False)
    assert (found.exit_code, found.ended, found.pid) == (None, None, None)


@pytest.mark.parametrize(
    ("one", "reason", "code"),
    [
        pytest.param(instance("app", EXITED, 0), "Completed", 0, id="exit code 0"),
        pytest.param(instance("app", EXITED, 3), "Error", 3, id="exit code 3"),
        pytest.param(instance("app", EXITED, 137, reason="OOMKilled"), "OOMKilled", 137, id="the runtime's reason"),
        pytest.param(instance("app", UNKNOWN), "ContainerStatusUnknown", 137, id="an unknown state"),
    ],
)
def test_terminated_containers(one, reason, code):
    found = first(pod(restart=NEVER), pod_status(one))

    assert (found.state, found.reason, found.exit_code) == ("ended", reason, code)
    assert (found.started, found.ended) == (
        timestamp(NOW - 1000),
        timestamp(NOW - 500) if one.state is EXITED else None,
    )
    assert (found.id, found.restarts, found.ready) == ("app-0", 0, False)


@pytest.mark.parametrize(
    ("spec", "probes", "ready"),
    [
        pytest.param(APP, {}, True, id="ready once it runs"),
        pytest.param(container("app", ready=True), {}, False, id="not ready before its readiness probe succeeds"),
        pytest.param(
            container("app", ready=True),
            {"app-0": ProbeStatus(started=True, ready=True)},
            True,
            id="its readiness probe succeeded",
        ),
        pytest.param(container("app", probed=True), {}, False, id="not ready before its startup probe succeeds"),
        pytest.param(
            container("app", probed=True), {"app-0": ProbeStatus(started=True)}, True, id="its startup probe succeeded"
        ),
    ],
)
def test_readiness_of_running_containers(spec, probes, ready):
    found = first(pod(spec), pod_status(instance("app")), WorkerState(probes=probes))

    assert (found.state, found.ready, found.pid, found.started) == ("running", ready, 77, timestamp(NOW - 1000))
    assert found.reason == ""


def test_the_last_termination_state_is_reported():
    before = [instance("app", EXITED, code, attempt=code, ran=LONG_AGO) for code in range(1, 3)]

    runs = first(pod(), pod_status(*before, instance("app", attempt=3)))
    waits = first(
        pod(), pod_status(*before[:1], replace(before[1], created=NOW - 5, started=NOW - 5, finished=NOW - 1))
    )
    ended = first(pod(restart=NEVER), pod_status(*before))

    assert [one.state for one in (runs, waits, ended)] == ["running", "waiting", "ended"]
    assert [one.restarts for one in (runs, waits, ended)] == [3, 2, 2]
    assert [one.last.exit_code for one in (runs, waits, ended) if one.last] == [2, 2, 1]
    assert all(one.last.last is None for one in (runs, waits, ended) if one.last)


def test_a_completed_init_container_is_ready():
    found = run_status(pod(init("i"), APP), pod_status(instance("i", EXITED), instance("app")))

    assert [(one.name, one.kind, one.state, one.ready) for one in found.containers] == [
        ("i", "init", "ended", True),
        ("app", "app", "running", True),
    ]


def test_a_completed_init_container_does_not_restart():
    found = first(pod(init("app"), container("web")), pod_status(instance("app", EXITED)), WorkerState(backoffs=FAILED))

    assert (found.state, found.reason) == ("ended", "Completed")


def test_a_removed_init_container_counts_as_completed():
    found = run_status(pod(init("i"), sidecar("side"), APP), pod_status(instance("app")))

    assert [(one.state, one.reason, one.exit_code) for one in found.containers[:2]] == [
        ("ended", "Completed", 0),
        ("waiting", "PodInitializing", None),
    ]


@pytest.mark.parametrize(
    ("spec", "status", "state"),
    [
        pytest.param(
            pod(),
            pod_status(instance("app", EXITED, 1, ran=LONG_AGO)),
            WorkerState(termination=TERMINATING, backoffs=FAILED),
            id="terminating",
        ),
        pytest.param(
            pod(restart=ON_FAILURE),
            pod_status(instance("app", EXITED), sandboxes=[DEAD]),
            WorkerState(backoffs=FAILED),
            id="terminated",
        ),
    ],
)
def test_containers_of_a_terminating_pod_do_not_wait(spec, status, state):
    assert first(spec, status, state).state == "ended"


def test_placements_are_reported():
    found = run_status(pod(), pod_status(instance("app")), app=CpusetPlacement(0b1100, 0b10)).containers[0]

    assert (found.cpus, found.nodes, found.image) == ("2-3", "1", "example.org/app")


def test_pod_level_fields():
    found = run_status(pod(), pod_status(instance("app")), WorkerState(termination=TERMINATING))

    assert found.replace(containers=()) == PodRunStatus(
        phase="Running", ending=True, ips=("10.0.0.7",), warnings=("ignored",)
    )


@pytest.mark.parametrize(
    ("sandboxes", "state", "reason"),
    [
        pytest.param([], WorkerState(), "FailedCreatePodSandBox", id="no sandbox"),
        pytest.param([DEAD], WorkerState(), "FailedCreatePodSandBox", id="a dead sandbox"),
        pytest.param([sandbox(ready=False, created=NOW + 10)], WorkerState(), "", id="a newer sandbox"),
        pytest.param([sandbox()], WorkerState(), "", id="a ready sandbox"),
        pytest.param([], WorkerState(termination=TERMINATING), "", id="a terminating pod"),
    ],
)
def test_a_failed_sandbox_is_reported(sandboxes, state, reason):
    failure = Backoff(until=NOW + 9, reason="FailedCreatePodSandBox", message="no network")

    found = run_status(pod(), pod_status(sandboxes=sandboxes), replace(state, sandbox_backoff=failure))

    assert found.reason == reason
    assert found.message == ("no network" if reason else "")


def test_a_pod_that_exceeds_its_deadline():
    found = run_status(pod(deadline=50), pod_status(instance("app")), WorkerState(admitted_at=NOW - 51))

    assert (found.phase, found.reason, found.ending) == ("Failed", "DeadlineExceeded", False)
    assert "deadline" in found.message
