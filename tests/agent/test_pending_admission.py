"""Pods on their way in: they have a place, nobody else can take it, and nothing of it is left if they do not come."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.agent.pending_admission import (
    PREPARING_DEVICES,
    RELEASED_WHILE_PENDING,
    PendingAdmission,
    PluginRejectedError,
)
from alignup.agent.state import AgentState, EventKind
from alignup.agent.transaction import Transaction
from alignup.align.errors import PodError
from alignup.align.machine import Device
from alignup.schema.api import AdmissionStatus, BusyError, NotReadyError
from tests.agent.states import clock, empty_state
from tests.align.hosts import GPU, pod
from tests.soundness import check_sound

GPUS = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number // 2) for number in range(4))
GRANTS = {"app": {GPU: {"envs": {"A": "1"}}}}
NO = PluginRejectedError("no", container="app")


def plugged(*, preferred: bool = False, **how) -> AgentState:
    """A plugin has announced two GPUs on each node."""
    draft = Transaction(empty_state(**how), clock())
    draft.set_devices(GPU, GPUS, preferred_allocation=preferred)
    return draft.state()


def pended(draft: Transaction, uid: str, cpu: str = "2") -> PendingAdmission:
    """A pod on its way in."""
    answer = draft.admit(pod(uid, gpu="1", cpu=cpu))
    assert isinstance(answer, PendingAdmission)
    return answer


def test_a_pod_on_its_way_in_has_a_place_and_is_not_known():
    draft = Transaction(plugged(), clock())

    pending = pended(draft, "a")

    now = draft.state()
    assert [(want.container, want.resource, want.ids) for want in pending.device_requests] == [("app", GPU, ("gpu-0",))]
    assert now.pod_views() == ()
    assert "a" in now.host.ledger.pods
    assert now.settled_host().ledger.pods == {}
    assert not draft.durable


def test_with_what_plugins_gave_it_is_here():
    draft = Transaction(plugged(), clock())

    admission = draft.commit(pended(draft, "a"), GRANTS)

    entry = draft.state().pod_view("a")
    assert entry is not None
    assert (entry, entry.grants, entry.status) == (admission.pod_view, GRANTS, AdmissionStatus.ADMITTED)
    assert draft.durable
    assert draft.state().settled_host() is draft.state().host


def test_where_a_plugin_says_no_everything_is_as_before():
    before = plugged()
    draft = Transaction(before, clock())

    admission = draft.fail(pended(draft, "a"), NO)

    assert admission.pod_view is None
    assert admission.decision.rejection is not None
    assert admission.decision.rejection.message == "Allocate failed due to no, which is unexpected"
    assert draft.state().host.ledger == before.host.ledger
    assert [one.kind for one in draft.events] == [EventKind.REJECTED]
    assert not draft.durable


def test_what_was_said_too_late_counts_no_more():
    draft = Transaction(plugged(), clock())
    first = pended(draft, "a")
    draft.release("a")
    second = pended(draft, "a")

    answers = draft.commit(first, GRANTS), draft.fail(first, NO), draft.apply_preferences(first, {})
    draft.undo(first)

    assert [one.decision.rejection and one.decision.rejection.reason for one in answers] == [RELEASED_WHILE_PENDING] * 3
    assert draft.state().pending == {"a": second}


def test_advice_moves_a_pod_to_other_devices():
    draft = Transaction(plugged(preferred=True), clock())
    pending = pended(draft, "a")
    (ask,) = pending.preference_requests

    advised = draft.apply_preferences(pending, {ask: ("gpu-1",)})

    assert isinstance(advised, PendingAdmission)
    assert (pending.device_requests[0].ids, advised.device_requests[0].ids, advised.preference_requests) == (
        ("gpu-0",),
        ("gpu-1",),
        (),
    )
    assert draft.state().pending == {"a": advised}


def test_advice_on_devices_that_are_others_by_now_is_asked_for_again_until_it_is_the_last():
    draft = Transaction(plugged(preferred=True), clock())
    pending = pended(draft, "a", cpu="1")
    (ask,) = pending.preference_requests
    draft.set_devices(GPU, GPUS[1:], preferred_allocation=True)

    again, last = (
        draft.apply_preferences(pending, {ask: ("gpu-0",)}),
        draft.apply_preferences(pending, {ask: ("gpu-0",)}, last=True),
    )

    assert isinstance(again, PendingAdmission)
    assert isinstance(last, PendingAdmission)
    assert again.preference_requests == ()  # one is left on the node, so there is nothing to choose
    assert (again.device_requests[0].ids, last.device_requests[0].ids) == (("gpu-1",), ("gpu-1",))


def test_a_pod_of_a_manifest_waits_for_its_plugins_in_line():
    draft = Transaction(plugged(), clock())

    (answer,) = draft.replace_pods([], [(pod("a", gpu="1"), "a.yaml")])

    now = draft.state()
    assert not isinstance(answer, Exception)
    assert answer.decision.rejection is not None
    assert (answer.decision.rejection.reason, list(now.waiting.pods), list(now.pending)) == (
        PREPARING_DEVICES,
        ["a"],
        ["a"],
    )
    assert list(now.pending.values()) == draft.started


def test_where_nobody_more_may_wait_a_pod_of_a_manifest_has_no_place_either():
    draft = Transaction(plugged(capacity=0), clock())

    (answer,) = draft.replace_pods([], [(pod("a", gpu="1"), "a.yaml")])

    assert isinstance(answer, BusyError)
    assert draft.state().pending == {}
    assert draft.state().host.ledger.pods == {}


@pytest.mark.parametrize(("cpu", "error"), [("2", NotReadyError), ("1", PodError)])
def test_another_pod_of_the_uid_of_one_on_its_way_in_is_told_so(cpu, error):
    draft = Transaction(plugged(), clock())
    pended(draft, "a", cpu="2")

    with pytest.raises(error):
        draft.admit(pod("a", gpu="1", cpu=cpu))


def test_one_that_rests_is_left_alone_until_it_is_woken():
    draft = Transaction(plugged(wait_enabled=True), clock())
    draft.fail(pended(draft, "a"), NO)
    draft.retry_waiting()
    resting = draft.state()
    later = Transaction(resting, clock())

    waits = later.end_backoff("a")

    assert (set(resting.backing_off), dict(resting.pending)) == ({"a"}, {})
    assert waits
    assert list(later.state().pending) == ["a"]
    assert not later.end_backoff("nobody")


def test_what_plugins_say_is_written_down_only_where_it_has_to_survive():
    first, again, moved = (Transaction(plugged(), clock()) for _ in range(3))
    new = Transaction(empty_state(), clock())
    new.set_devices("example.com/fpga", [Device("example.com/fpga", "fpga-0", nodes=1)])
    again.set_devices(GPU, [replace(one, healthy=False) for one in GPUS])
    moved.commit(pended(moved, "a"), GRANTS)
    gone = Transaction(moved.state(), clock())
    gone.set_devices(GPU, GPUS[1:])
    first.plugin_stopped(GPU)
    given_up = Transaction(first.state(), clock())
    given_up.remove_resource(GPU)

    assert (new.durable, again.durable, first.durable) == (True, False, False)
    assert (gone.durable, given_up.durable) == (True, True)


def test_a_resource_nobody_ever_announced_is_stopped_and_given_up_without_harm():
    draft = Transaction(empty_state(), clock())

    draft.plugin_stopped("example.com/fpga")
    draft.remove_resource("example.com/fpga")

    assert [one.kind for one in draft.events] == [EventKind.STOPPED, EventKind.GONE]
    assert draft.state().host.ledger.devices == empty_state().host.ledger.devices


#: What is done to a draft; with a pod that is, or was, on its way in.
JOBS = {
    "admit": lambda draft, wanted: draft.admit(wanted),
    "manifest": lambda draft, wanted: draft.replace_pods([], [(wanted, "a.yaml")]),
    "release": lambda draft, wanted: draft.release(wanted.uid),
    "stop": lambda draft, _: draft.plugin_stopped(GPU),
    "announce": lambda draft, _: draft.set_devices(GPU, GPUS, preferred_allocation=True),
    "wake": lambda draft, wanted: draft.end_backoff(wanted.uid),
}
ANSWERS = {
    "commit": lambda draft, pending: draft.commit(pending, GRANTS),
    "fail": lambda draft, pending: draft.fail(pending, NO),
    "undo": lambda draft, pending: draft.undo(pending),
    "advise": lambda draft, pending: draft.apply_preferences(
        pending, {ask: ask.available[-ask.size :] for ask in pending.preference_requests}
    ),
}
STEPS = (*JOBS, "admit", "admit", *ANSWERS, "commit")


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from("abcdef"), st.integers(1, 2)), max_size=30),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_whatever_plugins_say_and_when_the_books_are_right(steps, wait, patience):
    """Who is here has devices of its own, who is on its way in has a place, and in the end all is given back."""
    now = plugged(preferred=True, wait_enabled=wait, max_overtakes=patience)
    idle = now.host.ledger
    old: list[PendingAdmission] = []
    for what, uid, count in steps:
        draft = Transaction(now, clock())
        try:
            _do(draft, what, pod(uid, cpu=str(count), gpu=str(count)), old=old, pending=now.pending.get(uid))
        except (PodError, NotReadyError):
            continue
        now = draft.state()
        old += now.pending.values()

        check_sound(now.host, f"after {what} {uid}")
        check_sound(now.settled_host(), f"for good after {what} {uid}")
        assert now.host.ledger.pods.keys() == now.admitted.keys() | now.pending.keys()
        assert not now.admitted.keys() & (now.pending.keys() | now.waiting.pods.keys())
        assert now.settled_host().ledger.pods.keys() == now.admitted.keys()
        assert all(known.grants == GRANTS for known in now.admitted.values())

    draft = Transaction(now, clock())
    draft.set_devices(GPU, GPUS, preferred_allocation=True)
    for uid in "abcdef":
        draft.release(uid)
    assert draft.state().pod_views() == ()
    assert (draft.state().pending, draft.state().backing_off) == ({}, frozenset())
    assert replace(draft.state().host.ledger, used=idle.used) == idle


def _do(draft, what, wanted, *, old, pending):
    """One step; where there is nobody on the way in, somebody who was is taken, too late."""
    if what in JOBS:
        JOBS[what](draft, wanted)
    elif target := pending or next((one for one in reversed(old) if one.pod.uid == wanted.uid), None):
        ANSWERS[what](draft, target)
