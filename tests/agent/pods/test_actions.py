"""The course of a pod, turn by turn: what is done next in every situation that has a name."""

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
from alignup.kube.podspec.types import PodSpec
from tests.agent.pods.lives import (
    ALWAYS,
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

DEAD = box(ready=False)
TWO = (container("app"), container("web"))
ONE_INIT = (init("i"), APP)
WITH_SIDECAR = (init("i"), sidecar("side"), APP)
PROBED = (sidecar("side", probed=True), APP)
DONE = instance("i", EXITED)
SIDE = instance("side")
ENDED = (NOW - 100, NOW - 50)  #: when one ran that has ended and need not wait any more
JUST = (NOW - 7, NOW - 4)


def shown(found: PodActions) -> list[str]:
    """Acts in short: ``+app#1`` starts, ``-app-0`` stops, ``x…`` discards, ``[1]`` makes, ``]s0`` stops a sandbox."""
    words = []
    for act in found.actions:
        match act:
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


def turn(spec: PodSpec, now_seen: PodStatus, memory: WorkerState | None = None, *, now: float = NOW) -> PodActions:
    return compute_pod_actions(spec, now_seen, memory or WorkerState(), now=now)


@pytest.mark.parametrize(
    ("spec", "now_seen", "acts"),
    [
        pytest.param(pod(), PodStatus(), "[0]", id="first of all a sandbox"),
        pytest.param(pod(*TWO), seen(), "+app#0 +web#0", id="without init containers all begin at once"),
        pytest.param(pod(*TWO), seen(instance("app")), "+web#0", id="one that runs is left alone"),
        pytest.param(pod(*WITH_SIDECAR), seen(), "+i#0", id="the first init container is alone"),
        pytest.param(pod(*WITH_SIDECAR), seen(instance("i")), "", id="an init container is waited for"),
        pytest.param(pod(*WITH_SIDECAR), seen(DONE), "+side#0", id="then the next"),
        pytest.param(pod(*WITH_SIDECAR), seen(DONE, SIDE), "+app#0", id="a sidecar has started when it runs"),
        pytest.param(pod(*PROBED), seen(SIDE), "", id="unless it is probed for that"),
        pytest.param(pod(sidecar("side"), init("i"), APP), seen(SIDE), "+i#0", id="an init container after a sidecar"),
        pytest.param(
            pod(*WITH_SIDECAR), seen(SIDE), "+app#0", id="an init container that was removed is not run again"
        ),
        pytest.param(
            pod(*WITH_SIDECAR), seen(instance("app")), "+side#0", id="a sidecar that was removed is, beside the apps"
        ),
        pytest.param(pod(), seen(instance("app", CREATED)), "xapp-0", id="one that was made but not started goes"),
        pytest.param(
            pod(restart=NEVER), seen(instance("app", CREATED)), "xapp-0", id="also of a pod that may run it once"
        ),
        pytest.param(
            pod(),
            seen(instance("app", CREATED, attempt=1), instance("app", EXITED)),
            "xapp-1",
            id="also beside one that has ended",
        ),
    ],
)
def test_beginning(spec, now_seen, acts):
    found = turn(spec, now_seen)

    assert " ".join(shown(found)) == acts
    assert not found.terminated


@pytest.mark.parametrize("restart", [ALWAYS, ON_FAILURE, NEVER])
@pytest.mark.parametrize(
    ("spec", "code", "again"),
    [
        pytest.param(pod(), 0, {ALWAYS}, id="an app that ended well"),
        pytest.param(pod(), 1, {ALWAYS, ON_FAILURE}, id="an app that failed"),
        pytest.param(pod(init("app"), container("web")), 1, {ALWAYS, ON_FAILURE}, id="an init container that failed"),
        pytest.param(
            pod(sidecar("app"), container("web")), 0, {ALWAYS, ON_FAILURE, NEVER}, id="a sidecar that ended well"
        ),
        pytest.param(pod(sidecar("app"), container("web")), 1, {ALWAYS, ON_FAILURE, NEVER}, id="a sidecar that failed"),
    ],
)
def test_who_starts_again(spec, code, restart, again):
    found = turn(replace(spec, restart=restart), seen(instance("app", EXITED, code, ran=ENDED)))

    assert ("+app#1" in shown(found)) is (restart in again)
    assert ("]s0" in shown(found)) is (restart not in again)


@pytest.mark.parametrize(
    ("attempt", "seconds", "wait"),
    [(0, 4, 0), (1, 4, 6), (1, 11, 0), (2, 4, 16), (3, 4, 36), (9, 4, 296)],
)
def test_who_ends_again_and_again_waits_longer_and_longer(attempt, seconds, wait):
    ended = instance("app", EXITED, 1, attempt=attempt, ran=(NOW - 1 - seconds, NOW - seconds))

    found = turn(pod(), seen(ended))

    assert shown(found) == ([] if wait else [f"+app#{attempt + 1}"])
    assert found.wake_at == (NOW + wait if wait else None)
    assert [rest.reason for rest in found.backing_off.values()] == (["CrashLoopBackOff"] if wait else [])
    assert found.phase is PodPhase.RUNNING


def test_the_wait_follows_from_the_one_before():
    """However many attempts there were: after a long run it begins with ten seconds again."""
    before = instance("app", EXITED, 1, attempt=8, ran=(NOW - 900, NOW - 8))
    ended = instance("app", EXITED, 1, attempt=9, ran=JUST)

    assert turn(pod(), seen(before, ended)).wake_at == NOW + 6


def test_others_do_not_wait_for_one_that_does():
    crashed = instance("app", EXITED, 1, attempt=3, ran=JUST)

    found = turn(pod(*TWO), seen(crashed))

    assert shown(found) == ["+web#0"]
    assert found.wake_at == NOW + 36


@pytest.mark.parametrize(
    ("rest", "reason", "wake"),
    [
        pytest.param(
            Backoff(until=NOW + 9, reason="ErrImagePull", message="no route"),
            "ImagePullBackOff",
            NOW + 9,
            id="an image",
        ),
        pytest.param(
            Backoff(until=NOW + 9, reason="ErrImageNeverPull", message=""),
            "ErrImageNeverPull",
            NOW + 9,
            id="anything else",
        ),
        pytest.param(Backoff(until=NOW, reason="ErrImagePull", message=""), None, None, id="it is over"),
    ],
)
def test_one_that_could_not_be_started_rests(rest, reason, wake):
    found = turn(pod(), seen(), WorkerState(backoffs={"app": rest}))

    assert [one.reason for one in found.backing_off.values()] == ([reason] if reason else [])
    assert found.wake_at == wake
    assert shown(found) == ([] if wake else ["+app#0"])


def test_an_image_that_cannot_be_pulled_is_named():
    rest = Backoff(until=NOW + 9, reason="ErrImagePull", message="no route")

    found = turn(pod(), seen(), WorkerState(backoffs={"app": rest}))

    assert found.backing_off["app"].message == 'Back-off pulling image "example.org/app": ErrImagePull: no route'


@pytest.mark.parametrize(
    ("health", "grace"),
    [
        pytest.param(ProbeStatus(started=True, failure="liveness"), 30, id="in the time the pod has"),
        pytest.param(ProbeStatus(started=True, failure="liveness", grace=7), 7, id="in the time its probe gives it"),
        pytest.param(ProbeStatus(started=True, failure="liveness", grace=0), 2, id="in two seconds at least"),
        pytest.param(ProbeStatus(started=True, ready=False), None, id="but not if it is only not ready"),
    ],
)
def test_who_is_sick_is_stopped(health, grace):
    found = turn(pod(restart=NEVER), seen(instance("app")), WorkerState(probes={"app-0": health}))

    assert found.actions == (() if grace is None else (StopContainer("app-0", "app", grace, "liveness"),))


@pytest.mark.parametrize(
    ("now_seen", "acts"),
    [
        pytest.param(seen(instance("app", UNKNOWN)), "-app-0", id="nobody knows whether it runs"),
        pytest.param(seen(instance("app"), instance("app", attempt=1)), "-app-0", id="of two the older one"),
        pytest.param(
            seen(instance("app"), instance("app", EXITED, attempt=1, ran=ENDED)), "-app-0", id="also if the newer ended"
        ),
        pytest.param(
            seen(instance("app"), boxes=(box(), box(1))), "-app-0", id="it runs in a sandbox that is not the newest"
        ),
        pytest.param(seen(boxes=(box(), box(1))), "]s0 +app#0", id="a sandbox that is not the newest goes"),
        pytest.param(seen(instance("app"), boxes=(DEAD,)), "-app-0", id="its sandbox died"),
        pytest.param(
            seen(instance("app", sandbox=0), boxes=(box(), box(1, ready=False))), "-app-0", id="the newest of two died"
        ),
        pytest.param(seen(boxes=(box(), box(1, ready=False))), "]s0", id="and the older is stopped before a third"),
    ],
)
def test_nothing_starts_while_something_is_out_of_place(now_seen, acts):
    assert " ".join(shown(turn(pod(), now_seen))) == acts


@pytest.mark.parametrize(
    ("spec", "containers", "acts"),
    [
        pytest.param(pod(), [], "[1]", id="nothing had begun"),
        pytest.param(pod(restart=NEVER), [], "[1]", id="nothing of one that runs once had begun"),
        pytest.param(pod(), [instance("app", EXITED)], "[1]", id="it goes on"),
        pytest.param(pod(*TWO, restart=ON_FAILURE), [instance("app", EXITED)], "[1]", id="something is left to do"),
        pytest.param(pod(restart=ON_FAILURE), [instance("app", EXITED)], "", id="nothing is left to do"),
        pytest.param(pod(*TWO, restart=NEVER), [instance("app", EXITED)], "", id="what ran once does not run again"),
        pytest.param(pod(*ONE_INIT, restart=NEVER), [DONE], "", id="also if it was only an init container"),
    ],
)
def test_after_a_sandbox_has_died(spec, containers, acts):
    found = turn(spec, seen(*containers, boxes=[DEAD]))

    assert " ".join(shown(found)) == acts
    assert found.terminated is (not acts)


def test_a_new_sandbox_takes_the_place_of_the_one_that_died():
    assert turn(pod(), seen(boxes=[DEAD])).actions == (CreateSandbox(1, replaces="s0"),)


def test_in_a_new_sandbox_all_begins_anew_but_apps_that_are_done():
    spec = pod(*WITH_SIDECAR, container("web"), restart=ON_FAILURE)
    boxes = (DEAD, box(1))
    web = instance("web", EXITED, 0, ran=ENDED)
    app = instance("app", EXITED, 137, ran=ENDED)
    before = (DONE, instance("side", EXITED, ran=ENDED), app, web)
    anew = instance("i", EXITED, attempt=1, sandbox=1)
    side = instance("side", attempt=1, sandbox=1)

    first = turn(spec, seen(*before, boxes=boxes))
    second = turn(spec, seen(*before, anew, boxes=boxes))
    third = turn(spec, seen(*before, anew, side, boxes=boxes))

    assert [shown(found) for found in (first, second, third)] == [["+i#1"], ["+side#1"], ["+app#1"]]
    assert [found.phase for found in (first, second, third)] == [PodPhase.PENDING, PodPhase.PENDING, PodPhase.RUNNING]


def test_in_a_new_sandbox_no_sidecar_waits_but_apps_do():
    boxes = (DEAD, box(1))
    side, app = (instance(name, EXITED, 1, attempt=3, ran=JUST) for name in ("side", "app"))

    first = turn(pod(sidecar("side"), APP), seen(side, app, boxes=boxes))
    then = turn(pod(sidecar("side"), APP), seen(instance("side", attempt=4, sandbox=1), app, boxes=boxes))

    assert (shown(first), first.wake_at) == (["+side#4"], None)
    assert (shown(then), then.wake_at) == ([], NOW + 36)


def test_those_who_run_on_without_a_sandbox_have_the_whole_time_to_stop():
    spec = pod(*TWO, restart=NEVER)
    running = seen(instance("app", EXITED, 0, ran=(NOW - 900, NOW - 800)), instance("web"), boxes=[DEAD])

    found = turn(spec, running)

    assert [(act.id, act.grace) for act in found.actions if isinstance(act, StopContainer)] == [("web-0", 30)]
    assert (found.phase, found.terminated) == (PodPhase.RUNNING, False)


def test_a_pod_that_runs_once_says_that_its_sandbox_is_gone():
    found = turn(pod(*TWO, restart=NEVER), seen(instance("app", EXITED), boxes=[DEAD]))

    assert (found.phase, found.terminated) == (PodPhase.FAILED, True)
    assert found.message == "the pod sandbox is gone and restartPolicy is Never"


@pytest.mark.parametrize(
    ("attempt", "age", "wake"),
    [
        pytest.param(0, 1, None, id="not the first time"),
        pytest.param(1, 1, NOW + 9, id="but the second"),
        pytest.param(1, 10, None, id="unless it was there for a while"),
        pytest.param(9, 1, NOW + 299, id="up to five minutes"),
    ],
)
def test_a_sandbox_that_dies_young_is_not_made_again_in_haste(attempt, age, wake):
    found = turn(pod(), seen(boxes=[box(attempt, ready=False, created=NOW - age)]))

    assert found.wake_at == wake
    assert shown(found) == ([] if wake else [f"[{attempt + 1}]"])


def test_a_sandbox_that_could_not_be_made_rests():
    memory = WorkerState(sandbox_backoff=Backoff(until=NOW + 5, reason="FailedCreatePodSandBox", message="no network"))

    assert turn(pod(), PodStatus(), memory) == PodActions(wake_at=NOW + 5)
    assert shown(turn(pod(), PodStatus(), memory, now=NOW + 5)) == ["[0]"]


@pytest.mark.parametrize(
    ("spec", "now_seen", "phase"),
    [
        pytest.param(pod(*WITH_SIDECAR), PodStatus(), PodPhase.PENDING, id="no sandbox yet"),
        pytest.param(pod(*WITH_SIDECAR), seen(instance("i")), PodPhase.PENDING, id="an init container runs"),
        pytest.param(pod(*WITH_SIDECAR), seen(DONE, SIDE), PodPhase.PENDING, id="only a sidecar runs"),
        pytest.param(pod(*TWO), seen(instance("app")), PodPhase.PENDING, id="not all have begun"),
        pytest.param(pod(), seen(instance("app", CREATED)), PodPhase.PENDING, id="it is made but has not begun"),
        pytest.param(pod(*TWO), seen(instance("app"), instance("web", EXITED)), PodPhase.RUNNING, id="one runs"),
        pytest.param(pod(), seen(instance("app", EXITED, 1, ran=JUST)), PodPhase.RUNNING, id="one will again"),
        pytest.param(pod(restart=NEVER), seen(instance("app", EXITED, 1)), PodPhase.FAILED, id="it failed"),
        pytest.param(pod(restart=NEVER), seen(instance("app", EXITED, 0)), PodPhase.SUCCEEDED, id="it ended well"),
        pytest.param(
            pod(*TWO, restart=NEVER),
            seen(instance("app", EXITED, 0), instance("web", EXITED, 3)),
            PodPhase.FAILED,
            id="one of them failed",
        ),
        pytest.param(
            pod(*WITH_SIDECAR, restart=NEVER),
            seen(DONE, SIDE, instance("app", EXITED, 0)),
            PodPhase.RUNNING,
            id="a sidecar still runs",
        ),
        pytest.param(
            pod(*WITH_SIDECAR, restart=NEVER),
            seen(DONE, instance("side", EXITED, 137), instance("app", EXITED, 0)),
            PodPhase.SUCCEEDED,
            id="nobody asks how a sidecar ended",
        ),
        pytest.param(
            pod(sidecar("side"), init("i"), APP, restart=NEVER),
            seen(SIDE, instance("i", EXITED, 1)),
            PodPhase.FAILED,
            id="an init container failed, though a sidecar still runs",
        ),
    ],
)
def test_phase(spec, now_seen, phase):
    assert turn(spec, now_seen).phase is phase


LATER = (sidecar("first"), sidecar("second"), *TWO)
ALL = tuple(map(instance, ("first", "second", "app", "web")))


@pytest.mark.parametrize(
    ("containers", "acts"),
    [
        pytest.param(ALL, "-app-0 -web-0", id="apps at once"),
        pytest.param(ALL[:3], "-app-0", id="sidecars wait for all of them"),
        pytest.param(ALL[:2], "-second-0", id="then the last sidecar"),
        pytest.param(ALL[:1], "-first-0", id="then the one before"),
        pytest.param(
            (instance("first", CREATED),), "]s0 xfirst-0", id="then the sandbox; who never began does not run"
        ),
        pytest.param((instance("app", UNKNOWN),), "-app-0", id="who may run is stopped"),
        pytest.param((instance("stray"), *ALL[:2]), "-stray-0", id="also one that nobody knows"),
    ],
)
def test_the_order_of_ending(containers, acts):
    found = turn(pod(*LATER), seen(*containers), WorkerState(termination=PodTermination(since=NOW - 5, grace=20)))

    assert " ".join(shown(found)) == acts
    assert {act.grace for act in found.actions if isinstance(act, StopContainer)} <= {15}
    assert found.wake_at == (NOW + 15 if len(containers) > len(found.actions) else None)


def test_when_the_time_is_over_nobody_waits_for_anybody():
    found = turn(pod(*LATER), seen(*ALL), WorkerState(termination=PodTermination(since=NOW - 20, grace=20)))

    assert shown(found) == ["-first-0", "-second-0", "-app-0", "-web-0"]
    assert {act.grace for act in found.actions if isinstance(act, StopContainer)} == {2}
    assert found.wake_at is None


@pytest.mark.parametrize(
    ("containers", "phase"),
    [
        pytest.param([], PodPhase.FAILED, id="it never began"),
        pytest.param([instance("app", EXITED, 0)], PodPhase.SUCCEEDED, id="all ended well"),
        pytest.param([instance("app", EXITED, 143)], PodPhase.FAILED, id="one did not"),
    ],
)
def test_a_pod_that_was_told_to_end_has_ended_when_nothing_is_left(containers, phase):
    found = turn(
        pod(), seen(*containers, boxes=[DEAD]), WorkerState(termination=PodTermination(since=NOW - 5, grace=20))
    )

    assert found == PodActions(phase=phase, terminated=True)


def test_a_pod_that_never_began_ends_at_once():
    assert turn(pod(), PodStatus(), WorkerState(termination=PodTermination(since=NOW, grace=20))) == PodActions(
        phase=PodPhase.FAILED, terminated=True
    )


def test_a_pod_that_has_run_stops_its_sidecars_in_the_time_since():
    spec = pod(sidecar("side"), APP, restart=NEVER)
    side = instance("side")

    found = turn(spec, seen(side, instance("app", EXITED, 0, ran=(NOW - 60, NOW - 10))))
    then = turn(spec, seen(instance("side", EXITED, 137), instance("app", EXITED, 0)))
    last = turn(spec, seen(instance("side", EXITED, 137), instance("app", EXITED, 0), boxes=[DEAD]))

    assert [(act.id, act.grace) for act in found.actions if isinstance(act, StopContainer)] == [("side-0", 20)]
    assert shown(then) == ["]s0"]
    assert last == PodActions(phase=PodPhase.SUCCEEDED, terminated=True)


@pytest.mark.parametrize(
    ("containers", "ended", "reason", "phase"),
    [
        pytest.param([instance("app")], False, "DeadlineExceeded", PodPhase.FAILED, id="it runs on"),
        pytest.param([], False, "DeadlineExceeded", PodPhase.FAILED, id="it has not begun"),
        pytest.param(
            [instance("app", EXITED, 0, ran=(NOW - 60, NOW - 5))],
            True,
            "DeadlineExceeded",
            PodPhase.FAILED,
            id="it ended when it was told so",
        ),
        pytest.param(
            [instance("app", EXITED, 0, ran=(NOW - 60, NOW - 11))], True, "", PodPhase.SUCCEEDED, id="it ended in time"
        ),
    ],
)
def test_a_pod_may_run_so_long(containers, ended, reason, phase):
    boxes = [DEAD] if ended else [box()]

    found = turn(pod(restart=NEVER, deadline=50), seen(*containers, boxes=boxes), WorkerState(admitted_at=NOW - 60))

    assert (found.terminated, found.reason, found.phase) == (ended, reason, phase)
    assert not any(isinstance(act, StartContainer) for act in found.actions)
    assert all(act.grace == 20 for act in found.actions if isinstance(act, StopContainer))


@pytest.mark.parametrize(("began", "wake"), [(NOW - 20, NOW + 30), (0.0, None)], ids=["known", "not known"])
def test_the_deadline_is_waited_for(began, wake):
    assert turn(pod(deadline=50), seen(instance("app")), WorkerState(admitted_at=began)).wake_at == wake


@pytest.mark.parametrize(
    ("now_seen", "acts"),
    [
        pytest.param(
            seen(
                *(instance("app", EXITED, 1, attempt=number, ran=ENDED) for number in range(3)),
                instance("app", attempt=3),
            ),
            "xapp-0 xapp-1",
            id="the newest and the one before are kept",
        ),
        pytest.param(
            seen(instance("app", EXITED, attempt=0), instance("app", CREATED, attempt=1), instance("app", attempt=2)),
            "xapp-1",
            id="one that never began tells nothing",
        ),
        pytest.param(
            seen(instance("app", attempt=1, sandbox=1), boxes=(DEAD, box(1))), "xs0", id="a sandbox with nothing in it"
        ),
        pytest.param(
            seen(instance("app", EXITED), instance("app", attempt=1, sandbox=1), boxes=(DEAD, box(1))),
            "",
            id="a sandbox is kept with what is needed in it",
        ),
        pytest.param(
            seen(
                instance("app", EXITED, attempt=0),
                instance("app", EXITED, attempt=1, sandbox=1),
                instance("app", attempt=2, sandbox=1),
                boxes=(DEAD, box(1)),
            ),
            "xs0",
            id="and goes with what is not",
        ),
    ],
)
def test_what_nobody_needs_is_removed(now_seen, acts):
    assert " ".join(shown(turn(pod(), now_seen))) == acts


def test_what_is_under_way_is_said_until_it_shows():
    """Whoever drives the pod knows what it is doing already; here only what is seen counts."""
    assert turn(pod(), seen()) == turn(pod(), seen(), now=NOW + 1)
