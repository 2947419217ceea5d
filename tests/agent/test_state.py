"""Transactions change the agent's state."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.agent.state import (
    AdmissionResult,
    AdmissionStatus,
    AgentState,
    EventKind,
    PodRecord,
    PodViews,
    WaitingPods,
)
from alignup.agent.transaction import Transaction
from alignup.align.errors import PodError
from alignup.align.machine import Device
from alignup.align.reason_codes import WAITS_ITS_TURN
from alignup.web.responses import BusyError
from tests.agent.states import ANY_DECISION, clock, empty_state
from tests.align.hosts import GPU, pod
from tests.effort import examples
from tests.soundness import check_sound

FILE = "web.yaml"


def after(before: AgentState, *jobs) -> AgentState:
    """The state after each of *jobs* ran in its own transaction."""
    for job in jobs:
        transaction = Transaction(before, clock())
        job(transaction)
        before = transaction.state()
    return before


def not_none(value):
    """Assert that a value is not ``None``."""
    assert value is not None
    return value


def view(state, uid):
    """The view of a pod that is known."""
    return not_none(state.pod_view(uid))


def submit(transaction, wanted) -> AdmissionResult:
    """Admit a pod without plugin devices."""
    answer = transaction.admit(wanted)
    assert isinstance(answer, AdmissionResult)
    return answer


def admits(uid, *, source="api", **requests):
    return lambda transaction: transaction.admit(pod(uid, **requests), source=source)


def releases(uid):
    return lambda transaction: transaction.release(uid)


def test_a_pod_that_fits_is_admitted():
    transaction = Transaction(empty_state(), clock())

    admission = submit(transaction, pod("a"))

    entry = view(transaction.state(), "a")
    assert admission.decision.admitted
    assert admission.pod_view == entry
    assert (entry.status, entry.source, entry.position) == (AdmissionStatus.ADMITTED, "api", None)
    assert [(event.kind, not_none(event.pod).uid) for event in transaction.events] == [(EventKind.ADMITTED, "a")]


def test_a_transaction_does_not_change_the_state_it_starts_from():
    before = empty_state()
    ledger = before.host.ledger

    Transaction(before, clock()).admit(pod("a"))

    assert before.host.ledger is ledger
    assert before.pod_views() == ()


def test_a_rejected_pod_leaves_the_state_unchanged():
    before = after(empty_state(), admits("a", cpu="4"))
    transaction = Transaction(before, clock())

    admission = submit(transaction, pod("b", cpu="4"))

    assert admission.pod_view is None
    assert transaction.state() is before
    assert [event.kind for event in transaction.events] == [EventKind.REJECTED]


def test_a_pod_submitted_twice_keeps_its_resources():
    before = after(empty_state(), admits("a"))
    transaction = Transaction(before, clock())

    again = submit(transaction, pod("a"))

    assert again.decision.kept
    assert not_none(again.pod_view).since == view(before, "a").since
    assert transaction.state() is before


@pytest.mark.parametrize(
    "others", [pytest.param([], id="that runs"), pytest.param([("x", "4"), ("y", "3")], id="that waits")]
)
def test_another_pod_with_a_known_uid_is_an_error_of_that_field(others):
    before = after(empty_state(wait_enabled=True), *(admits(uid, cpu=cpu) for uid, cpu in others), admits("a", cpu="3"))

    for method in (Transaction.admit, Transaction.decide):  # a dry run only decides
        with pytest.raises(PodError) as rejected:
            method(Transaction(before, clock()), pod("a", cpu="1"))

        assert rejected.value.problems[0].field == "metadata.uid"


@pytest.mark.parametrize("uid", ["", "a/b", "/", ".", "..", "x" * 1_025, "a\nb", "a\0", "\ud800"])
def test_a_pod_that_could_never_be_released_is_invalid_whatever_its_source(uid):
    transaction, unreleasable = Transaction(empty_state(), clock()), replace(pod("a"), uid=uid)

    for act in (transaction.decide, transaction.admit, partial(transaction.admit, source="/manifests/a.yaml")):
        with pytest.raises(PodError) as rejected:
            act(unreleasable)
        assert rejected.value.problems[0].field == "metadata.uid"
    assert isinstance(transaction.replace_pods((), [(unreleasable, "/manifests/a.yaml")])[0], PodError)
    assert transaction.state().pod_views() == ()


@pytest.mark.parametrize("uid", ["x" * 1_024, "...", "a b", "a?b#c%2F", "é", "a:b_c"])
def test_a_pod_may_have_any_uid_that_fits_into_a_path(uid):
    assert submit(Transaction(empty_state(), clock()), replace(pod("a"), uid=uid)).decision.admitted


def test_a_pod_that_does_not_fit_waits_if_waiting_is_enabled():
    before = after(empty_state(wait_enabled=True), admits("a", cpu="4"))
    transaction = Transaction(before, clock())

    admission = submit(transaction, pod("b", cpu="4"))

    assert (not_none(admission.pod_view).status, not_none(admission.pod_view).position) == (AdmissionStatus.WAITING, 1)
    assert not_none(admission.decision.rejection).reason == "TopologyAffinityError"
    assert view(transaction.state(), "b").decision == admission.decision
    assert [event.kind for event in transaction.events] == [EventKind.WAITING]


def test_a_waiting_pod_that_is_submitted_again_keeps_its_position():
    before = after(empty_state(wait_enabled=True), admits("a", cpu="4"), admits("b", cpu="4"), admits("c", cpu="4"))

    again = submit(Transaction(before, clock()), pod("b", cpu="4"))

    assert (not_none(again.pod_view).status, not_none(again.pod_view).position) == (AdmissionStatus.WAITING, 1)


def test_a_pod_that_can_never_fit_is_rejected():
    admission = submit(Transaction(empty_state(wait_enabled=True), clock()), pod("huge", cpu="5"))

    assert admission.pod_view is None


def test_pods_from_manifests_wait_even_where_others_are_rejected():
    before = after(empty_state(), admits("a", cpu="4"), admits("b", cpu="4", source=FILE), admits("c", cpu="4"))

    assert [entry.pod.uid for entry in before.pod_views()] == ["a", "b"]
    assert view(before, "b").status is AdmissionStatus.WAITING
    assert view(after(before, releases("a")), "b").status is AdmissionStatus.ADMITTED


def test_a_release_admits_waiting_pods_in_order():
    before = after(empty_state(wait_enabled=True), admits("a", cpu="4"), admits("b", cpu="4"), admits("c", cpu="4"))
    transaction = Transaction(before, clock())

    gone = not_none(transaction.release("a"))

    assert gone.pod.uid == "a"
    assert [(event.kind, not_none(event.pod).uid) for event in transaction.events] == [
        (EventKind.RELEASED, "a"),
        (EventKind.ADMITTED, "b"),
    ]
    assert view(transaction.state(), "c").position == 1


def test_a_pod_that_does_not_fit_does_not_block_others():
    before = after(empty_state(wait_enabled=True), admits("a", cpu="4"), admits("b", cpu="3"), admits("big", cpu="4"))

    now = after(before, admits("small", cpu="3"), releases("b"))

    assert view(now, "small").status is AdmissionStatus.ADMITTED
    assert view(now, "big").status is AdmissionStatus.WAITING
    assert now.waiting.overtakes == {"big": 1}


def test_a_pod_at_its_overtake_limit_blocks_later_pods():
    before = after(empty_state(wait_enabled=True, max_overtakes=2), admits("a", cpu="4"), admits("big", cpu="4"))
    before = after(before, admits("s1", cpu="1"), admits("s2", cpu="1"))
    transaction = Transaction(before, clock())

    admission = submit(transaction, pod("s3", cpu="1"))

    assert before.waiting.overtakes == {"big": 2}
    assert not_none(admission.decision.rejection).reason == WAITS_ITS_TURN
    assert "default/big" in not_none(admission.decision.rejection).message
    assert not_none(admission.pod_view).position == 2
    assert view(after(transaction.state(), releases("s1")), "s3").status is AdmissionStatus.WAITING
    assert {entry.pod.uid for entry in after(transaction.state(), releases("a")).pod_views()} == {
        "big",
        "s1",
        "s2",
        "s3",
    }
    assert not after(transaction.state(), releases("a")).waiting


def test_a_pod_that_reaches_its_overtake_limit_during_a_retry_blocks_later_pods():
    before = after(
        empty_state(wait_enabled=True, max_overtakes=1),
        admits("a", cpu="4"),
        admits("b", cpu="3"),
        admits("big", cpu="4"),
    )
    before = after(before, admits("s1", cpu="1"), admits("s2", cpu="1"))

    now = after(before, releases("b"))

    assert view(now, "s1").status is AdmissionStatus.ADMITTED
    assert view(now, "s2").status is AdmissionStatus.WAITING


def test_releasing_a_blocking_pod_unblocks_later_pods():
    before = after(
        empty_state(wait_enabled=True, max_overtakes=0),
        admits("a", cpu="4"),
        admits("big", cpu="4"),
        admits("s", cpu="1"),
    )

    now = after(before, releases("big"))

    assert view(now, "s").status is AdmissionStatus.ADMITTED


def test_a_full_wait_queue_raises_busy_and_changes_nothing():
    before = after(empty_state(wait_enabled=True, capacity=1), admits("a", cpu="4"), admits("b", cpu="4"))

    with pytest.raises(BusyError):
        Transaction(before, clock()).admit(pod("c", cpu="4"))


def test_releasing_an_unknown_pod_changes_nothing():
    before = empty_state()
    transaction = Transaction(before, clock())

    assert transaction.release("unknown") is None
    assert transaction.state() is before


def test_a_replacement_gets_the_resources_before_waiting_pods():
    before = after(empty_state(wait_enabled=True), admits("old", cpu="4", source=FILE), admits("waits", cpu="4"))
    transaction = Transaction(before, clock())

    (admission,) = not_none(transaction.replace_pods(["old"], [(pod("new", cpu="4"), FILE)]))

    assert not_none(admission.pod_view).status is AdmissionStatus.ADMITTED
    assert [(view.pod.uid, view.status) for view in transaction.state().pod_views()] == [
        ("new", AdmissionStatus.ADMITTED),
        ("waits", AdmissionStatus.WAITING),
    ]


def test_an_invalid_replacement_does_not_affect_the_others():
    before = after(empty_state(), admits("a", cpu="1"))
    transaction = Transaction(before, clock())

    wrong, right = not_none(transaction.replace_pods([], [(pod("a", cpu="2"), FILE), (pod("b", cpu="2"), FILE)]))

    assert isinstance(wrong, PodError)
    assert not_none(right.pod_view).status is AdmissionStatus.ADMITTED


def test_a_waiting_pod_that_raises_an_error_does_not_block_others():
    before = after(
        empty_state(wait_enabled=True, pod_policy_annotations=True), admits("a", cpu="4"), admits("b", cpu="4")
    )
    choosy = replace(pod("odd", cpu="1"), annotations={"topology.alignup.dev/policy": "strictest"})
    odd = PodRecord(pod=choosy, since=0.0, source="api", decision=ANY_DECISION)
    waiting = WaitingPods()
    for record in (odd, *before.waiting):
        waiting.add(record)
    before = replace(before, waiting=waiting)

    now = after(before, releases("a"))

    assert view(now, "b").status is AdmissionStatus.ADMITTED
    assert now.waiting.uids() == ["odd"]


def test_listed_devices_admit_waiting_pods():
    asks = {"cpu": "1", "gpu": "1"}
    before = after(empty_state(wait_enabled=True), *(admits(uid, **asks) for uid in "abc"))
    more = [Device(GPU, f"gpu-{number}", nodes=1 << number % 2) for number in range(4)]
    transaction = Transaction(before, clock())

    transaction.set_devices(GPU, more)

    (pending,) = transaction.started
    assert view(before, "c").status is AdmissionStatus.WAITING
    assert (
        view(after(transaction.state(), lambda again: again.commit(pending, {})), "c").status
        is AdmissionStatus.ADMITTED
    )
    assert transaction.events[0].kind is EventKind.ANNOUNCED
    assert "4 of 4 devices" in transaction.events[0].detail


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"), st.sampled_from("12345"), st.sampled_from(["admit", "admit", "release"])
        ),
        max_size=24,
    ),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)
def test_the_ledger_and_the_records_agree_after_any_sequence(jobs, wait, patience):
    """Ledger and records agree, no pod is listed twice, and no waiting pod fits."""
    now = empty_state(wait_enabled=wait, max_overtakes=patience)
    idle = now.host.ledger
    for uid, cpu, action in jobs:
        transaction = Transaction(now, clock())
        try:
            transaction.admit(pod(uid, cpu=cpu)) if action == "admit" else transaction.release(uid)
        except PodError:
            continue
        now = transaction.state()

        check_sound(now.host, f"after {action} {uid}")
        assert list(now.admitted) == list(now.host.ledger.pods)
        assert not now.admitted.keys() & set(now.waiting.uids())
        first = next(iter(now.waiting), None)
        if first is not None:
            assert wait
            assert not now.host.decide(first.pod).admitted

    for entry in now.pod_views():
        now = after(now, releases(entry.pod.uid))
    assert now.pod_views() == ()
    assert replace(now.host.ledger, used=idle.used) == idle


def test_a_list_of_pods_is_a_snapshot_with_slices():
    """Admitted pods come first, then waiting ones with their positions; later changes do not show."""
    state = after(empty_state(wait_enabled=True), *(admits(name, cpu="4") for name in "abcd"))
    views = PodViews(state)
    after(state, releases("a"))

    listed = list(views)

    assert [view.pod.uid for view in listed] == ["a", "b", "c", "d"]
    assert [view.position for view in listed] == [None, 1, 2, 3]
    assert len(views) == 4
    assert [list(views[start:stop]) for start, stop in ((0, 2), (1, 9), (3, 1))] == [listed[:2], listed[1:], []]
    assert (views[-1], views[0]) == (listed[-1], listed[0])
