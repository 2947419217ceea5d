"""Pending pods hold their resources, and release them if the admission fails."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.agent.pending_admission import (
    PendingAdmission,
    PluginRejectedError,
)
from alignup.agent.state import AdmissionStatus, AgentState, EventKind
from alignup.agent.transaction import Transaction
from alignup.align.errors import PodError
from alignup.align.machine import Device
from alignup.align.reason_codes import PREPARING_DEVICES, RELEASED_WHILE_PENDING
from alignup.web.responses import BusyError, NotReadyError
from tests.agent.states import clock, empty_state
from tests.align.hosts import GPU, pod
from tests.effort import examples
from tests.soundness import check_sound

GPUS = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number // 2) for number in range(4))
GRANTS = {"app": {GPU: {"envs": {"A": "1"}}}}
NO = PluginRejectedError("no", container="app")


def plugged(*, preferred: bool = False, **how) -> AgentState:
    """A state with a plugin that has two GPUs on each node."""
    transaction = Transaction(empty_state(**how), clock())
    transaction.set_devices(GPU, GPUS, preferred_allocation=preferred)
    return transaction.state()


def pended(transaction: Transaction, uid: str, cpu: str = "2") -> PendingAdmission:
    """A pending pod."""
    answer = transaction.admit(pod(uid, gpu="1", cpu=cpu))
    assert isinstance(answer, PendingAdmission)
    return answer


def test_a_pending_pod_holds_resources_and_is_not_listed():
    transaction = Transaction(plugged(), clock())

    pending = pended(transaction, "a")

    now = transaction.state()
    assert [(want.container, want.resource, want.ids) for want in pending.device_requests] == [("app", GPU, ("gpu-0",))]
    assert now.pod_views() == ()
    assert "a" in now.host.ledger.pods
    assert now.settled_host().ledger.pods == {}
    assert not transaction.durable


def test_a_committed_pod_is_admitted_with_its_grants():
    transaction = Transaction(plugged(), clock())

    admission = transaction.commit(pended(transaction, "a"), GRANTS)

    entry = transaction.state().pod_view("a")
    assert entry is not None
    assert (entry, entry.grants, entry.status) == (admission.pod_view, GRANTS, AdmissionStatus.ADMITTED)
    assert transaction.durable
    assert transaction.state().settled_host() is transaction.state().host


def test_a_plugin_failure_restores_the_previous_state():
    before = plugged()
    transaction = Transaction(before, clock())

    admission = transaction.fail(pended(transaction, "a"), NO)

    assert admission.pod_view is None
    assert admission.decision.rejection is not None
    assert admission.decision.rejection.message == "Allocate failed due to no, which is unexpected"
    assert transaction.state().host.ledger == before.host.ledger
    assert [event.kind for event in transaction.events] == [EventKind.REJECTED]
    assert not transaction.durable


def test_a_late_answer_for_a_released_pod_is_ignored():
    transaction = Transaction(plugged(), clock())
    first = pended(transaction, "a")
    transaction.release("a")
    second = pended(transaction, "a")

    answers = transaction.commit(first, GRANTS), transaction.fail(first, NO), transaction.apply_preferences(first, {})
    transaction.undo(first)

    assert [answer.decision.rejection and answer.decision.rejection.reason for answer in answers] == [
        RELEASED_WHILE_PENDING
    ] * 3
    assert transaction.state().pending == {"a": second}


def test_preferences_move_a_pod_to_other_devices():
    transaction = Transaction(plugged(preferred=True), clock())
    pending = pended(transaction, "a")
    (ask,) = pending.preference_requests

    advised = transaction.apply_preferences(pending, {ask: ("gpu-1",)})

    assert isinstance(advised, PendingAdmission)
    assert (pending.device_requests[0].ids, advised.device_requests[0].ids, advised.preference_requests) == (
        ("gpu-0",),
        ("gpu-1",),
        (),
    )
    assert transaction.state().pending == {"a": advised}


def test_outdated_preferences_are_requested_again_until_the_last_round():
    transaction = Transaction(plugged(preferred=True), clock())
    pending = pended(transaction, "a", cpu="1")
    (ask,) = pending.preference_requests
    transaction.set_devices(GPU, GPUS[1:], preferred_allocation=True)

    again, last = (
        transaction.apply_preferences(pending, {ask: ("gpu-0",)}),
        transaction.apply_preferences(pending, {ask: ("gpu-0",)}, last=True),
    )

    assert isinstance(again, PendingAdmission)
    assert isinstance(last, PendingAdmission)
    assert again.preference_requests == ()  # one device is left on the node, so there is no choice
    assert (again.device_requests[0].ids, last.device_requests[0].ids) == (("gpu-1",), ("gpu-1",))


def test_a_pod_from_a_manifest_waits_for_its_plugins_in_the_wait_queue():
    transaction = Transaction(plugged(), clock())

    (answer,) = transaction.replace_pods([], [(pod("a", gpu="1"), "a.yaml")])

    now = transaction.state()
    assert not isinstance(answer, Exception)
    assert answer.decision.rejection is not None
    assert (answer.decision.rejection.reason, now.waiting.uids(), list(now.pending)) == (
        PREPARING_DEVICES,
        ["a"],
        ["a"],
    )
    assert list(now.pending.values()) == transaction.started


def test_a_full_wait_queue_leaves_no_pending_pod():
    transaction = Transaction(plugged(capacity=0), clock())

    (answer,) = transaction.replace_pods([], [(pod("a", gpu="1"), "a.yaml")])

    assert isinstance(answer, BusyError)
    assert transaction.state().pending == {}
    assert transaction.state().host.ledger.pods == {}


@pytest.mark.parametrize(("cpu", "error"), [("2", NotReadyError), ("1", PodError)])
def test_another_pod_with_the_uid_of_a_pending_pod_is_an_error(cpu, error):
    transaction = Transaction(plugged(), clock())
    pended(transaction, "a", cpu="2")

    with pytest.raises(error):
        transaction.admit(pod("a", gpu="1", cpu=cpu))


def test_a_pod_that_backs_off_is_not_retried_before_its_time():
    transaction = Transaction(plugged(wait_enabled=True), clock())
    transaction.fail(pended(transaction, "a"), NO)
    transaction.retry_waiting()
    resting = transaction.state()
    later = Transaction(resting, clock())

    waits = later.end_backoff("a")

    assert (set(resting.backing_off), dict(resting.pending)) == ({"a"}, {})
    assert waits
    assert list(later.state().pending) == ["a"]
    assert not later.end_backoff("unknown")


def test_device_changes_are_durable_only_if_pods_hold_the_devices():
    first, again, moved = (Transaction(plugged(), clock()) for _ in range(3))
    new = Transaction(empty_state(), clock())
    new.set_devices("example.com/fpga", [Device("example.com/fpga", "fpga-0", nodes=1)])
    again.set_devices(GPU, [replace(device, healthy=False) for device in GPUS])
    moved.commit(pended(moved, "a"), GRANTS)
    gone = Transaction(moved.state(), clock())
    gone.set_devices(GPU, GPUS[1:])
    first.plugin_stopped(GPU)
    given_up = Transaction(first.state(), clock())
    given_up.plugin_stopped(GPU, gone=True)

    assert (new.durable, again.durable, first.durable) == (True, False, False)
    assert (gone.durable, given_up.durable) == (True, True)


def test_stopping_and_removing_an_unknown_resource_does_no_harm():
    transaction = Transaction(empty_state(), clock())

    transaction.plugin_stopped("example.com/fpga")
    transaction.plugin_stopped("example.com/fpga", gone=True)

    assert [event.kind for event in transaction.events] == [EventKind.STOPPED, EventKind.GONE]
    assert transaction.state().host.ledger.devices == empty_state().host.ledger.devices


#: Steps of a transaction, with a current or outdated pending pod.
JOBS = {
    "admit": lambda transaction, wanted: transaction.admit(wanted),
    "manifest": lambda transaction, wanted: transaction.replace_pods([], [(wanted, "a.yaml")]),
    "release": lambda transaction, wanted: transaction.release(wanted.uid),
    "stop": lambda transaction, _: transaction.plugin_stopped(GPU),
    "announce": lambda transaction, _: transaction.set_devices(GPU, GPUS, preferred_allocation=True),
    "wake": lambda transaction, wanted: transaction.end_backoff(wanted.uid),
}
ANSWERS = {
    "commit": lambda transaction, pending: transaction.commit(pending, GRANTS),
    "fail": lambda transaction, pending: transaction.fail(pending, NO),
    "undo": lambda transaction, pending: transaction.undo(pending),
    "advise": lambda transaction, pending: transaction.apply_preferences(
        pending, {ask: ask.available[-ask.size :] for ask in pending.preference_requests}
    ),
}
STEPS = (*JOBS, "admit", "admit", *ANSWERS, "commit")


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from("abcdef"), st.integers(1, 2)), max_size=30),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_the_ledger_is_sound_whatever_plugins_do(steps, wait, patience):
    """Admitted pods have distinct devices, pending pods hold resources, and releases restore the initial ledger."""
    now = plugged(preferred=True, wait_enabled=wait, max_overtakes=patience)
    idle = now.host.ledger
    old: list[PendingAdmission] = []
    for action, uid, count in steps:
        transaction = Transaction(now, clock())
        try:
            _do(transaction, action, pod(uid, cpu=str(count), gpu=str(count)), old=old, pending=now.pending.get(uid))
        except (PodError, NotReadyError):
            continue
        now = transaction.state()
        old += now.pending.values()

        check_sound(now.host, f"after {action} {uid}")
        check_sound(now.settled_host(), f"settled after {action} {uid}")
        assert now.host.ledger.pods.keys() == now.admitted.keys() | now.pending.keys()
        assert not now.admitted.keys() & (now.pending.keys() | set(now.waiting.uids()))
        assert now.settled_host().ledger.pods.keys() == now.admitted.keys()
        assert all(known.grants == GRANTS for known in now.admitted.values())

    transaction = Transaction(now, clock())
    transaction.set_devices(GPU, GPUS, preferred_allocation=True)
    for uid in "abcdef":
        transaction.release(uid)
    assert transaction.state().pod_views() == ()
    assert (transaction.state().pending, transaction.state().backing_off) == ({}, frozenset())
    assert replace(transaction.state().host.ledger, used=idle.used) == idle


def _do(transaction, action, wanted, *, old, pending):
    """One step; without a pending pod, an outdated one is used."""
    if action in JOBS:
        JOBS[action](transaction, wanted)
    elif target := pending or next((other for other in reversed(old) if other.pod.uid == wanted.uid), None):
        ANSWERS[action](transaction, target)
