"""The next actions of a pod in every situation."""

from dataclasses import replace

import pytest

from alignup.agent.pods.actions import compute_pod_actions
from alignup.agent.pods.pod_state import (
    Backoff,
    CreateSandbox,
    PodActions,
    PodPhase,
    PodStatus,
    PodTermination,
    ProbeStatus,
    RemoveFromRuntime,
    StartContainer,
    StopContainer,
    StopSandbox,
    WorkerState,
)
from alignup.kubernetes.podspec.types import PodSpec
from tests.agent.pods.statuses import (
    ALWAYS,
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

DEAD = sandbox(ready=False)
TWO = (container("app"), container("web"))
ONE_INIT = (init("i"), APP)
WITH_SIDECAR = (init("i"), sidecar("side"), APP)
PROBED = (sidecar("side", probed=True), APP)
INIT_DONE = instance("i", EXITED)
SIDE = instance("side")
LONG_AGO = (NOW - 100, NOW - 50)  #: when an instance ran whose back-off is over
JUST_NOW = (NOW - 7, NOW - 4)


def summary(found: PodActions) -> list[str]:
    """As text: ``+app#1`` starts, ``-app-0`` stops, ``x…`` removes; ``[1]`` creates, ``]s0`` stops a sandbox."""
    words = []
    for action in found.actions:
        match action:
            case StartContainer(container=name, attempt=attempt):
                words.append(f"+{name}#{attempt}")
            case StopContainer(id=id_):
                words.append(f"-{id_}")
            case CreateSandbox(attempt=attempt):
                words.append(f"[{attempt}]")
            case StopSandbox(id=id_):
                words.append(f"]{id_}")
            case RemoveFromRuntime(id=id_):
                words.append(f"x{id_}")
    return words


def compute(spec: PodSpec, status: PodStatus, state: WorkerState | None = None, *, now: float = NOW) -> PodActions:
    return compute_pod_actions(spec, status, state or WorkerState(), now=now)


@pytest.mark.parametrize(
    ("spec", "status", "actions"),
    [
        pytest.param(pod(), PodStatus(), "[0]", id="the sandbox comes first"),
        pytest.param(pod(*TWO), pod_status(), "+app#0 +web#0", id="without init containers all apps start at once"),
        pytest.param(pod(*TWO), pod_status(instance("app")), "+web#0", id="a running container is left alone"),
        pytest.param(pod(*WITH_SIDECAR), pod_status(), "+i#0", id="the first init container starts alone"),
        pytest.param(pod(*WITH_SIDECAR), pod_status(instance("i")), "", id="apps wait for an init container"),
        pytest.param(pod(*WITH_SIDECAR), pod_status(INIT_DONE), "+side#0", id="the next init container follows"),
        pytest.param(
            pod(*WITH_SIDECAR), pod_status(INIT_DONE, SIDE), "+app#0", id="a sidecar has started when it runs"
        ),
        pytest.param(pod(*PROBED), pod_status(SIDE), "", id="unless it has a startup probe"),
        pytest.param(
            pod(sidecar("side"), init("i"), APP), pod_status(SIDE), "+i#0", id="an init container after a sidecar"
        ),
        pytest.param(pod(*WITH_SIDECAR), pod_status(SIDE), "+app#0", id="a removed init container does not run again"),
        pytest.param(
            pod(*WITH_SIDECAR),
            pod_status(instance("app")),
            "+side#0",
            id="a removed sidecar starts again beside the apps",
        ),
        pytest.param(
            pod(),
            pod_status(instance("app", CREATED)),
            "xapp-0",
            id="a container that was created but not started is removed",
        ),
        pytest.param(
            pod(restart=NEVER), pod_status(instance("app", CREATED)), "xapp-0", id="also with restartPolicy Never"
        ),
        pytest.param(
            pod(),
            pod_status(instance("app", CREATED, attempt=1), instance("app", EXITED)),
            "xapp-1",
            id="also beside an exited instance",
        ),
    ],
)
def test_next_actions_while_a_pod_starts(spec, status, actions):
    found = compute(spec, status)

    assert " ".join(summary(found)) == actions
    assert not found.terminated


@pytest.mark.parametrize("restart", [ALWAYS, ON_FAILURE, NEVER])
@pytest.mark.parametrize(
    ("spec", "code", "restarting"),
    [
        pytest.param(pod(), 0, {ALWAYS}, id="an app that succeeded"),
        pytest.param(pod(), 1, {ALWAYS, ON_FAILURE}, id="an app that failed"),
        pytest.param(pod(init("app"), container("web")), 1, {ALWAYS, ON_FAILURE}, id="an init container that failed"),
        pytest.param(
            pod(sidecar("app"), container("web")), 0, {ALWAYS, ON_FAILURE, NEVER}, id="a sidecar that succeeded"
        ),
        pytest.param(pod(sidecar("app"), container("web")), 1, {ALWAYS, ON_FAILURE, NEVER}, id="a sidecar that failed"),
    ],
)
def test_restart_policies(spec, code, restart, restarting):
    found = compute(replace(spec, restart=restart), pod_status(instance("app", EXITED, code, ran=LONG_AGO)))

    assert ("+app#1" in summary(found)) is (restart in restarting)
    assert ("]s0" in summary(found)) is (restart not in restarting)


@pytest.mark.parametrize(
    ("attempt", "seconds", "wait"),
    [(0, 4, 0), (1, 4, 6), (1, 11, 0), (2, 4, 16), (3, 4, 36), (9, 4, 296)],
)
def test_crashing_containers_back_off_exponentially(attempt, seconds, wait):
    exited = instance("app", EXITED, 1, attempt=attempt, ran=(NOW - 1 - seconds, NOW - seconds))

    found = compute(pod(), pod_status(exited))

    assert summary(found) == ([] if wait else [f"+app#{attempt + 1}"])
    assert found.wake_at == (NOW + wait if wait else None)
    assert [failure.reason for failure in found.backing_off.values()] == (["CrashLoopBackOff"] if wait else [])
    assert found.phase is PodPhase.RUNNING


def test_the_delay_doubles_from_the_previous_one():
    """After a long run, the delay starts with ten seconds again, whatever the number of attempts."""
    before = instance("app", EXITED, 1, attempt=8, ran=(NOW - 900, NOW - 8))
    exited = instance("app", EXITED, 1, attempt=9, ran=JUST_NOW)

    assert compute(pod(), pod_status(before, exited)).wake_at == NOW + 6


def test_a_crashing_container_does_not_delay_the_others():
    crashed = instance("app", EXITED, 1, attempt=3, ran=JUST_NOW)

    found = compute(pod(*TWO), pod_status(crashed))

    assert summary(found) == ["+web#0"]
    assert found.wake_at == NOW + 36


@pytest.mark.parametrize(
    ("failure", "reason", "wake_at"),
    [
        pytest.param(
            Backoff(until=NOW + 9, reason="ErrImagePull", message="no route"),
            "ImagePullBackOff",
            NOW + 9,
            id="an image pull",
        ),
        pytest.param(
            Backoff(until=NOW + 9, reason="ErrImageNeverPull", message=""),
            "ErrImageNeverPull",
            NOW + 9,
            id="anything else",
        ),
        pytest.param(Backoff(until=NOW, reason="ErrImagePull", message=""), None, None, id="the back-off is over"),
    ],
)
def test_a_failed_start_backs_off(failure, reason, wake_at):
    found = compute(pod(), pod_status(), WorkerState(backoffs={"app": failure}))

    assert [one.reason for one in found.backing_off.values()] == ([reason] if reason else [])
    assert found.wake_at == wake_at
    assert summary(found) == ([] if wake_at else ["+app#0"])


def test_the_message_of_an_image_pull_back_off():
    failure = Backoff(until=NOW + 9, reason="ErrImagePull", message="no route")

    found = compute(pod(), pod_status(), WorkerState(backoffs={"app": failure}))

    assert found.backing_off["app"].message == 'Back-off pulling image "example.org/app": ErrImagePull: no route'


@pytest.mark.parametrize(
    ("probe", "grace"),
    [
        pytest.param(ProbeStatus(started=True, failure="liveness"), 30, id="within the pod's grace period"),
        pytest.param(ProbeStatus(started=True, failure="liveness", grace=7), 7, id="within the probe's grace period"),
        pytest.param(ProbeStatus(started=True, failure="liveness", grace=0), 2, id="with two seconds at least"),
        pytest.param(ProbeStatus(started=True, ready=False), None, id="not if it is only unready"),
    ],
)
def test_a_container_with_a_failed_probe_is_stopped(probe, grace):
    found = compute(pod(restart=NEVER), pod_status(instance("app")), WorkerState(probes={"app-0": probe}))

    assert found.actions == (() if grace is None else (StopContainer("app-0", "app", grace, "liveness"),))


@pytest.mark.parametrize(
    ("status", "actions"),
    [
        pytest.param(pod_status(instance("app", UNKNOWN)), "-app-0", id="its state is unknown"),
        pytest.param(
            pod_status(instance("app"), instance("app", attempt=1)), "-app-0", id="the older of two instances"
        ),
        pytest.param(
            pod_status(instance("app"), instance("app", EXITED, attempt=1, ran=LONG_AGO)),
            "-app-0",
            id="also if the newer one has exited",
        ),
        pytest.param(
            pod_status(instance("app"), sandboxes=(sandbox(), sandbox(1))), "-app-0", id="it runs in an old sandbox"
        ),
        pytest.param(pod_status(sandboxes=(sandbox(), sandbox(1))), "]s0 +app#0", id="an old sandbox is stopped"),
        pytest.param(pod_status(instance("app"), sandboxes=(DEAD,)), "-app-0", id="its sandbox died"),
        pytest.param(
            pod_status(instance("app", sandbox=0), sandboxes=(sandbox(), sandbox(1, ready=False))),
            "-app-0",
            id="the newest of two died",
        ),
        pytest.param(
            pod_status(sandboxes=(sandbox(), sandbox(1, ready=False))),
            "]s0",
            id="the older is stopped before a third is created",
        ),
    ],
)
def test_nothing_starts_while_a_container_is_misplaced(status, actions):
    assert " ".join(summary(compute(pod(), status))) == actions


@pytest.mark.parametrize(
    ("spec", "containers", "actions"),
    [
        pytest.param(pod(), [], "[1]", id="nothing had started"),
        pytest.param(pod(restart=NEVER), [], "[1]", id="nothing had started with restartPolicy Never"),
        pytest.param(pod(), [instance("app", EXITED)], "[1]", id="it restarts"),
        pytest.param(pod(*TWO, restart=ON_FAILURE), [instance("app", EXITED)], "[1]", id="one app is left"),
        pytest.param(pod(restart=ON_FAILURE), [instance("app", EXITED)], "", id="every app is done"),
        pytest.param(
            pod(*TWO, restart=NEVER), [instance("app", EXITED)], "", id="apps do not restart with restartPolicy Never"
        ),
        pytest.param(pod(*ONE_INIT, restart=NEVER), [INIT_DONE], "", id="nor do init containers"),
    ],
)
def test_actions_after_the_sandbox_died(spec, containers, actions):
    found = compute(spec, pod_status(*containers, sandboxes=[DEAD]))

    assert " ".join(summary(found)) == actions
    assert found.terminated is (not actions)


def test_a_new_sandbox_replaces_the_dead_one():
    assert compute(pod(), pod_status(sandboxes=[DEAD])).actions == (CreateSandbox(1, replaces="s0"),)


def test_a_new_sandbox_restarts_everything_except_completed_apps():
    spec = pod(*WITH_SIDECAR, container("web"), restart=ON_FAILURE)
    sandboxes = (DEAD, sandbox(1))
    web = instance("web", EXITED, 0, ran=LONG_AGO)
    app = instance("app", EXITED, 137, ran=LONG_AGO)
    before = (INIT_DONE, instance("side", EXITED, ran=LONG_AGO), app, web)
    init_again = instance("i", EXITED, attempt=1, sandbox=1)
    side = instance("side", attempt=1, sandbox=1)

    first = compute(spec, pod_status(*before, sandboxes=sandboxes))
    second = compute(spec, pod_status(*before, init_again, sandboxes=sandboxes))
    third = compute(spec, pod_status(*before, init_again, side, sandboxes=sandboxes))

    assert [summary(found) for found in (first, second, third)] == [["+i#1"], ["+side#1"], ["+app#1"]]
    assert [found.phase for found in (first, second, third)] == [PodPhase.PENDING, PodPhase.PENDING, PodPhase.RUNNING]


def test_in_a_new_sandbox_apps_back_off_and_sidecars_do_not():
    sandboxes = (DEAD, sandbox(1))
    side, app = (instance(name, EXITED, 1, attempt=3, ran=JUST_NOW) for name in ("side", "app"))

    first = compute(pod(sidecar("side"), APP), pod_status(side, app, sandboxes=sandboxes))
    then = compute(
        pod(sidecar("side"), APP), pod_status(instance("side", attempt=4, sandbox=1), app, sandboxes=sandboxes)
    )

    assert (summary(first), first.wake_at) == (["+side#4"], None)
    assert (summary(then), then.wake_at) == ([], NOW + 36)


def test_containers_without_a_sandbox_get_the_whole_grace_period():
    spec = pod(*TWO, restart=NEVER)
    running = pod_status(instance("app", EXITED, 0, ran=(NOW - 900, NOW - 800)), instance("web"), sandboxes=[DEAD])

    found = compute(spec, running)

    assert [(action.id, action.grace) for action in found.actions if isinstance(action, StopContainer)] == [
        ("web-0", 30)
    ]
    assert (found.phase, found.terminated) == (PodPhase.RUNNING, False)


def test_a_pod_that_never_restarts_fails_without_its_sandbox():
    found = compute(pod(*TWO, restart=NEVER), pod_status(instance("app", EXITED), sandboxes=[DEAD]))

    assert (found.phase, found.terminated) == (PodPhase.FAILED, True)
    assert found.message == "the pod sandbox is gone and restartPolicy is Never"


@pytest.mark.parametrize(
    ("attempt", "age", "wake_at"),
    [
        pytest.param(0, 1, None, id="no delay the first time"),
        pytest.param(1, 1, NOW + 9, id="a delay the second time"),
        pytest.param(1, 10, None, id="no delay if it was old enough"),
        pytest.param(9, 1, NOW + 299, id="up to five minutes"),
    ],
)
def test_sandboxes_that_die_quickly_back_off(attempt, age, wake_at):
    found = compute(pod(), pod_status(sandboxes=[sandbox(attempt, ready=False, created=NOW - age)]))

    assert found.wake_at == wake_at
    assert summary(found) == ([] if wake_at else [f"[{attempt + 1}]"])


def test_a_sandbox_that_cannot_be_created_backs_off():
    state = WorkerState(sandbox_backoff=Backoff(until=NOW + 5, reason="FailedCreatePodSandBox", message="no network"))

    assert compute(pod(), PodStatus(), state) == PodActions(wake_at=NOW + 5)
    assert summary(compute(pod(), PodStatus(), state, now=NOW + 5)) == ["[0]"]


@pytest.mark.parametrize(
    ("spec", "status", "phase"),
    [
        pytest.param(pod(*WITH_SIDECAR), PodStatus(), PodPhase.PENDING, id="no sandbox yet"),
        pytest.param(pod(*WITH_SIDECAR), pod_status(instance("i")), PodPhase.PENDING, id="an init container runs"),
        pytest.param(pod(*WITH_SIDECAR), pod_status(INIT_DONE, SIDE), PodPhase.PENDING, id="only a sidecar runs"),
        pytest.param(pod(*TWO), pod_status(instance("app")), PodPhase.PENDING, id="one app has not started"),
        pytest.param(pod(), pod_status(instance("app", CREATED)), PodPhase.PENDING, id="it is created but not started"),
        pytest.param(pod(*TWO), pod_status(instance("app"), instance("web", EXITED)), PodPhase.RUNNING, id="one runs"),
        pytest.param(
            pod(), pod_status(instance("app", EXITED, 1, ran=JUST_NOW)), PodPhase.RUNNING, id="it will restart"
        ),
        pytest.param(pod(restart=NEVER), pod_status(instance("app", EXITED, 1)), PodPhase.FAILED, id="it failed"),
        pytest.param(pod(restart=NEVER), pod_status(instance("app", EXITED, 0)), PodPhase.SUCCEEDED, id="it succeeded"),
        pytest.param(
            pod(*TWO, restart=NEVER),
            pod_status(instance("app", EXITED, 0), instance("web", EXITED, 3)),
            PodPhase.FAILED,
            id="one of them failed",
        ),
        pytest.param(
            pod(*WITH_SIDECAR, restart=NEVER),
            pod_status(INIT_DONE, SIDE, instance("app", EXITED, 0)),
            PodPhase.RUNNING,
            id="a sidecar still runs",
        ),
        pytest.param(
            pod(*WITH_SIDECAR, restart=NEVER),
            pod_status(INIT_DONE, instance("side", EXITED, 137), instance("app", EXITED, 0)),
            PodPhase.SUCCEEDED,
            id="the exit code of a sidecar does not count",
        ),
        pytest.param(
            pod(sidecar("side"), init("i"), APP, restart=NEVER),
            pod_status(SIDE, instance("i", EXITED, 1)),
            PodPhase.FAILED,
            id="an init container failed while a sidecar runs",
        ),
    ],
)
def test_phase(spec, status, phase):
    assert compute(spec, status).phase is phase


LATER = (sidecar("first"), sidecar("second"), *TWO)
ALL = tuple(map(instance, ("first", "second", "app", "web")))


@pytest.mark.parametrize(
    ("containers", "actions"),
    [
        pytest.param(ALL, "-app-0 -web-0", id="apps stop at once"),
        pytest.param(ALL[:3], "-app-0", id="sidecars wait for all apps"),
        pytest.param(ALL[:2], "-second-0", id="then the last sidecar"),
        pytest.param(ALL[:1], "-first-0", id="then the first sidecar"),
        pytest.param(
            (instance("first", CREATED),), "]s0 xfirst-0", id="then the sandbox, ignoring containers that never started"
        ),
        pytest.param((instance("app", UNKNOWN),), "-app-0", id="a container in an unknown state is stopped"),
        pytest.param((instance("unknown"), *ALL[:2]), "-unknown-0", id="also a container that is not in the spec"),
    ],
)
def test_the_order_of_termination(containers, actions):
    found = compute(
        pod(*LATER), pod_status(*containers), WorkerState(termination=PodTermination(since=NOW - 5, grace=20))
    )

    assert " ".join(summary(found)) == actions
    assert {action.grace for action in found.actions if isinstance(action, StopContainer)} <= {15}
    assert found.wake_at == (NOW + 15 if len(containers) > len(found.actions) else None)


def test_after_the_grace_period_everything_stops_at_once():
    found = compute(pod(*LATER), pod_status(*ALL), WorkerState(termination=PodTermination(since=NOW - 20, grace=20)))

    assert summary(found) == ["-first-0", "-second-0", "-app-0", "-web-0"]
    assert {action.grace for action in found.actions if isinstance(action, StopContainer)} == {2}
    assert found.wake_at is None


@pytest.mark.parametrize(
    ("containers", "phase"),
    [
        pytest.param([], PodPhase.FAILED, id="it never started"),
        pytest.param([instance("app", EXITED, 0)], PodPhase.SUCCEEDED, id="every app succeeded"),
        pytest.param([instance("app", EXITED, 143)], PodPhase.FAILED, id="one app failed"),
    ],
)
def test_a_terminating_pod_has_terminated_when_nothing_is_left(containers, phase):
    found = compute(
        pod(),
        pod_status(*containers, sandboxes=[DEAD]),
        WorkerState(termination=PodTermination(since=NOW - 5, grace=20)),
    )

    assert found == PodActions(phase=phase, terminated=True)


def test_a_pod_that_never_started_terminates_at_once():
    assert compute(pod(), PodStatus(), WorkerState(termination=PodTermination(since=NOW, grace=20))) == PodActions(
        phase=PodPhase.FAILED, terminated=True
    )


def test_sidecars_of_a_completed_pod_stop_within_its_grace_period():
    spec = pod(sidecar("side"), APP, restart=NEVER)
    side = instance("side")

    found = compute(spec, pod_status(side, instance("app", EXITED, 0, ran=(NOW - 60, NOW - 10))))
    then = compute(spec, pod_status(instance("side", EXITED, 137), instance("app", EXITED, 0)))
    last = compute(spec, pod_status(instance("side", EXITED, 137), instance("app", EXITED, 0), sandboxes=[DEAD]))

    assert [(action.id, action.grace) for action in found.actions if isinstance(action, StopContainer)] == [
        ("side-0", 20)
    ]
    assert summary(then) == ["]s0"]
    assert last == PodActions(phase=PodPhase.SUCCEEDED, terminated=True)


@pytest.mark.parametrize(
    ("containers", "exited", "reason", "phase"),
    [
        pytest.param([instance("app")], False, "DeadlineExceeded", PodPhase.FAILED, id="it still runs"),
        pytest.param([], False, "DeadlineExceeded", PodPhase.FAILED, id="it has not started"),
        pytest.param(
            [instance("app", EXITED, 0, ran=(NOW - 60, NOW - 5))],
            True,
            "DeadlineExceeded",
            PodPhase.FAILED,
            id="it exited after the deadline",
        ),
        pytest.param(
            [instance("app", EXITED, 0, ran=(NOW - 60, NOW - 11))],
            True,
            "",
            PodPhase.SUCCEEDED,
            id="it exited before the deadline",
        ),
    ],
)
def test_active_deadline_seconds(containers, exited, reason, phase):
    sandboxes = [DEAD] if exited else [sandbox()]

    found = compute(
        pod(restart=NEVER, deadline=50), pod_status(*containers, sandboxes=sandboxes), WorkerState(admitted_at=NOW - 60)
    )

    assert (found.terminated, found.reason, found.phase) == (exited, reason, phase)
    assert not any(isinstance(action, StartContainer) for action in found.actions)
    assert all(action.grace == 20 for action in found.actions if isinstance(action, StopContainer))


@pytest.mark.parametrize(("admitted_at", "wake_at"), [(NOW - 20, NOW + 30), (0.0, None)], ids=["known", "not known"])
def test_the_deadline_sets_the_next_wake_up(admitted_at, wake_at):
    assert (
        compute(pod(deadline=50), pod_status(instance("app")), WorkerState(admitted_at=admitted_at)).wake_at == wake_at
    )


@pytest.mark.parametrize(
    ("status", "actions"),
    [
        pytest.param(
            pod_status(
                *(instance("app", EXITED, 1, attempt=number, ran=LONG_AGO) for number in range(3)),
                instance("app", attempt=3),
            ),
            "xapp-0 xapp-1",
            id="the newest and the last exited instance are kept",
        ),
        pytest.param(
            pod_status(
                instance("app", EXITED, attempt=0), instance("app", CREATED, attempt=1), instance("app", attempt=2)
            ),
            "xapp-1",
            id="an instance that never started is not kept",
        ),
        pytest.param(
            pod_status(instance("app", attempt=1, sandbox=1), sandboxes=(DEAD, sandbox(1))),
            "xs0",
            id="an empty sandbox",
        ),
        pytest.param(
            pod_status(instance("app", EXITED), instance("app", attempt=1, sandbox=1), sandboxes=(DEAD, sandbox(1))),
            "",
            id="a sandbox is kept with its containers",
        ),
        pytest.param(
            pod_status(
                instance("app", EXITED, attempt=0),
                instance("app", EXITED, attempt=1, sandbox=1),
                instance("app", attempt=2, sandbox=1),
                sandboxes=(DEAD, sandbox(1)),
            ),
            "xs0",
            id="a sandbox is removed with its containers",
        ),
    ],
)
def test_old_containers_and_sandboxes_are_removed(status, actions):
    assert " ".join(summary(compute(pod(), status))) == actions


def test_an_action_is_repeated_until_its_effect_is_visible():
    """Only the status counts; the worker tracks the actions in progress."""
    assert compute(pod(), pod_status()) == compute(pod(), pod_status(), now=NOW + 1)
