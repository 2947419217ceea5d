"""How a pod is told to be: states, reasons and counts in Kubernetes' words."""

from dataclasses import replace

import pytest

from alignup.agent.pods.actions import compute_pod_actions
from alignup.agent.pods.pod_state import Backoff, PodStatus, PodTermination, ProbeStatus, WorkerState
from alignup.agent.pods.status import StatusInputs, generate_pod_run
from alignup.kube.podspec.types import PodSpec
from alignup.schema.api import ContainerRunStatus, PodRunStatus
from tests.agent.pods.lives import (
    APP,
    CREATED,
    EXITED,
    NEVER,
    NOW,
    ON_FAILURE,
    UNKNOWN,
    box,
    container,
    init,
    instance,
    pod,
    seen,
    sidecar,
)

JUST = (NOW - 7, NOW - 4)
LONG_AGO = (NOW - 900, NOW - 800)
DEAD = box(ready=False)
FAILED = {"app": Backoff(until=NOW + 9, reason="ErrImagePull", message="no route")}
OVER = {"app": Backoff(until=NOW, reason="ErrImagePull", message="no route")}
BEFORE = {"app": Backoff(until=NOW - 2000, reason="ErrImagePull", message="no route")}
TOLD = PodTermination(since=NOW - 1, grace=30)


def run_of(
    spec: PodSpec, now_seen: PodStatus, memory: WorkerState | None = None, **placed: tuple[int, int]
) -> PodRunStatus:
    memory = memory or WorkerState()
    found = compute_pod_actions(spec, now_seen, memory, now=NOW)
    inputs = StatusInputs(
        spec=spec, status=now_seen, state=memory, actions=found, warnings=("ignored",), placements=placed
    )
    return generate_pod_run(inputs)


def first(spec: PodSpec, now_seen: PodStatus, memory: WorkerState | None = None) -> ContainerRunStatus:
    return run_of(spec, now_seen, memory).containers[0]


@pytest.mark.parametrize(
    ("spec", "now_seen", "memory", "reason"),
    [
        pytest.param(pod(), PodStatus(), WorkerState(), "ContainerCreating", id="it is its turn"),
        pytest.param(pod(APP, init("i")), PodStatus(), WorkerState(), "PodInitializing", id="others come first"),
        pytest.param(pod(), seen(instance("app", CREATED)), WorkerState(), "ContainerCreating", id="it is made"),
        pytest.param(
            pod(), seen(), WorkerState(backoffs=FAILED), "ImagePullBackOff", id="its image could not be pulled"
        ),
        pytest.param(pod(), seen(), WorkerState(backoffs=OVER), "ErrImagePull", id="and is pulled again"),
        pytest.param(
            pod(),
            seen(instance("app", EXITED, 1, ran=LONG_AGO)),
            WorkerState(backoffs=FAILED),
            "ImagePullBackOff",
            id="later too",
        ),
        pytest.param(
            pod(),
            seen(instance("app", EXITED, 1, ran=LONG_AGO)),
            WorkerState(backoffs=OVER),
            "ErrImagePull",
            id="and again",
        ),
        pytest.param(
            pod(),
            seen(instance("app", EXITED, attempt=1, ran=JUST)),
            WorkerState(),
            "CrashLoopBackOff",
            id="it ends too often",
        ),
        pytest.param(
            pod(), seen(instance("app", CREATED)), WorkerState(backoffs=FAILED), "ImagePullBackOff", id="made in vain"
        ),
        pytest.param(
            pod(),
            seen(instance("app", CREATED)),
            WorkerState(backoffs=BEFORE),
            "ContainerCreating",
            id="failures of before",
        ),
    ],
)
def test_one_that_waits(spec, now_seen, memory, reason):
    found = first(spec, now_seen, memory)

    assert (found.state, found.reason, found.ready) == ("waiting", reason, False)
    assert (found.exit_code, found.ended, found.pid) == (None, None, None)


@pytest.mark.parametrize(
    ("one", "reason", "code"),
    [
        pytest.param(instance("app", EXITED, 0), "Completed", 0, id="well"),
        pytest.param(instance("app", EXITED, 3), "Error", 3, id="badly"),
        pytest.param(instance("app", EXITED, 137, reason="OOMKilled"), "OOMKilled", 137, id="as the runtime says"),
        pytest.param(instance("app", UNKNOWN), "ContainerStatusUnknown", 137, id="nobody knows how"),
    ],
)
def test_one_that_ended(one, reason, code):
    found = first(pod(restart=NEVER), seen(one))

    assert (found.state, found.reason, found.exit_code) == ("ended", reason, code)
    assert (found.started, found.ended) == (NOW - 1000, NOW - 500 if one.state is EXITED else None)
    assert (found.id, found.restarts, found.ready) == ("app-0", 0, False)


@pytest.mark.parametrize(
    ("spec", "health", "ready"),
    [
        pytest.param(APP, {}, True, id="as soon as it runs"),
        pytest.param(container("app", ready=True), {}, False, id="not before its probe says so"),
        pytest.param(
            container("app", ready=True), {"app-0": ProbeStatus(started=True, ready=True)}, True, id="it says so"
        ),
        pytest.param(container("app", probed=True), {}, False, id="not before it has come up"),
        pytest.param(container("app", probed=True), {"app-0": ProbeStatus(started=True)}, True, id="it has come up"),
    ],
)
def test_one_that_runs_is_ready(spec, health, ready):
    found = first(pod(spec), seen(instance("app")), WorkerState(probes=health))

    assert (found.state, found.ready, found.pid, found.started) == ("running", ready, 77, NOW - 1000)
    assert found.reason == ""


def test_the_time_before_is_told():
    before = [instance("app", EXITED, code, attempt=code, ran=LONG_AGO) for code in range(1, 3)]

    runs = first(pod(), seen(*before, instance("app", attempt=3)))
    waits = first(pod(), seen(*before[:1], replace(before[1], created=NOW - 5, started=NOW - 5, finished=NOW - 1)))
    ended = first(pod(restart=NEVER), seen(*before))

    assert [one.state for one in (runs, waits, ended)] == ["running", "waiting", "ended"]
    assert [one.restarts for one in (runs, waits, ended)] == [3, 2, 2]
    assert [one.last.exit_code for one in (runs, waits, ended) if one.last] == [2, 2, 1]
    assert all(one.last.last is None for one in (runs, waits, ended) if one.last)


def test_an_init_container_that_ended_well_is_ready():
    found = run_of(pod(init("i"), APP), seen(instance("i", EXITED), instance("app")))

    assert [(one.name, one.kind, one.state, one.ready) for one in found.containers] == [
        ("i", "init", "ended", True),
        ("app", "app", "running", True),
    ]


def test_an_init_container_that_ended_well_does_not_start_again():
    found = first(pod(init("app"), container("web")), seen(instance("app", EXITED)), WorkerState(backoffs=FAILED))

    assert (found.state, found.reason) == ("ended", "Completed")


def test_an_init_container_that_was_forgotten_ended_well():
    found = run_of(pod(init("i"), sidecar("side"), APP), seen(instance("app")))

    assert [(one.state, one.reason, one.exit_code) for one in found.containers[:2]] == [
        ("ended", "Completed", 0),
        ("waiting", "PodInitializing", None),
    ]


@pytest.mark.parametrize(
    ("spec", "now_seen", "memory"),
    [
        pytest.param(
            pod(),
            seen(instance("app", EXITED, 1, ran=LONG_AGO)),
            WorkerState(termination=TOLD, backoffs=FAILED),
            id="told to end",
        ),
        pytest.param(
            pod(restart=ON_FAILURE),
            seen(instance("app", EXITED), boxes=[DEAD]),
            WorkerState(backoffs=FAILED),
            id="has ended",
        ),
    ],
)
def test_in_a_pod_that_does_not_go_on_nobody_waits(spec, now_seen, memory):
    assert first(spec, now_seen, memory).state == "ended"


def test_where_a_container_was_put():
    found = run_of(pod(), seen(instance("app")), app=(0b1100, 0b10)).containers[0]

    assert (found.cpus, found.nodes, found.image) == (0b1100, 0b10, "example.org/app")


def test_a_pod_as_a_whole():
    found = run_of(pod(), seen(instance("app")), WorkerState(termination=TOLD))

    assert replace(found, containers=()) == PodRunStatus(
        phase="Running", ending=True, ips=("10.0.0.7",), warnings=("ignored",)
    )


@pytest.mark.parametrize(
    ("boxes", "memory", "reason"),
    [
        pytest.param([], WorkerState(), "FailedCreatePodSandBox", id="there is none"),
        pytest.param([DEAD], WorkerState(), "FailedCreatePodSandBox", id="there was one"),
        pytest.param([box(ready=False, created=NOW + 10)], WorkerState(), "", id="there has been one since"),
        pytest.param([box()], WorkerState(), "", id="there is one"),
        pytest.param([], WorkerState(termination=TOLD), "", id="there is to be none"),
    ],
)
def test_why_there_is_no_sandbox(boxes, memory, reason):
    rest = Backoff(until=NOW + 9, reason="FailedCreatePodSandBox", message="no network")

    found = run_of(pod(), seen(boxes=boxes), replace(memory, sandbox_backoff=rest))

    assert found.reason == reason
    assert found.message == ("no network" if reason else "")


def test_a_pod_that_ran_too_long():
    found = run_of(pod(deadline=50), seen(instance("app")), WorkerState(admitted_at=NOW - 51))

    assert (found.phase, found.reason, found.ending) == ("Failed", "DeadlineExceeded", False)
    assert "deadline" in found.message
