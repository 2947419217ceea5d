"""How one job after the other changes what stands."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.agent.pending_admission import WAITS_ITS_TURN
from alignup.agent.pod_record import PodRecord
from alignup.agent.state import AgentState, EventKind
from alignup.agent.transaction import Transaction
from alignup.align.errors import PodError
from alignup.align.machine import Device
from alignup.schema.api import AdmissionResult, AdmissionStatus, BusyError
from tests.agent.states import ANY_DECISION, clock, empty_state
from tests.align.hosts import GPU, pod
from tests.soundness import check_sound

FILE = "web.yaml"


def after(before: AgentState, *jobs) -> AgentState:
    """What stands when jobs, each something done to a draft, were done one after the other."""
    for job in jobs:
        draft = Transaction(before, clock())
        job(draft)
        before = draft.state()
    return before


def the(found):
    """What has to be there."""
    assert found is not None
    return found


def sent(draft, wanted) -> AdmissionResult:
    """What became of a pod that has nothing to do with plugins."""
    answer = draft.admit(wanted)
    assert isinstance(answer, AdmissionResult)
    return answer


def admits(uid, *, source="api", **asked):
    return lambda draft: draft.admit(pod(uid, **asked), source=source)


def releases(uid):
    return lambda draft: draft.release(uid)


def test_a_pod_that_fits_is_admitted_and_known():
    draft = Transaction(empty_state(), clock())

    admission = sent(draft, pod("a"))

    entry = the(draft.state().pod_view("a"))
    assert admission.decision.admitted
    assert admission.pod_view == entry
    assert (entry.status, entry.source, entry.position) == (AdmissionStatus.ADMITTED, "api", None)
    assert [(one.kind, the(one.pod).uid) for one in draft.events] == [(EventKind.ADMITTED, "a")]


def test_a_draft_changes_nothing_until_it_counts():
    before = empty_state()
    ledger = before.host.ledger

    Transaction(before, clock()).admit(pod("a"))

    assert before.host.ledger is ledger
    assert before.pod_views() == ()


def test_a_refused_pod_leaves_what_stood():
    before = after(empty_state(), admits("a", cpu="4"))
    draft = Transaction(before, clock())

    admission = sent(draft, pod("b", cpu="4"))

    assert admission.pod_view is None
    assert draft.state() is before
    assert [one.kind for one in draft.events] == [EventKind.REJECTED]


def test_a_pod_sent_twice_keeps_what_it_has():
    before = after(empty_state(), admits("a"))
    draft = Transaction(before, clock())

    again = sent(draft, pod("a"))

    assert again.decision.kept
    assert the(again.pod_view).since == the(before.pod_view("a")).since
    assert draft.state() is before


@pytest.mark.parametrize(
    "others", [pytest.param([], id="that runs"), pytest.param([("x", "4"), ("y", "3")], id="that waits")]
)
def test_another_pod_under_a_known_uid_is_refused_by_its_field(others):
    before = after(empty_state(wait_enabled=True), *(admits(uid, cpu=cpu) for uid, cpu in others), admits("a", cpu="3"))

    with pytest.raises(PodError) as refused:
        Transaction(before, clock()).admit(pod("a", cpu="1"))

    assert refused.value.problems[0].field == "metadata.uid"


def test_a_pod_that_does_not_fit_now_waits_where_it_may():
    before = after(empty_state(wait_enabled=True), admits("a", cpu="4"))
    draft = Transaction(before, clock())

    admission = sent(draft, pod("b", cpu="4"))

    assert (the(admission.pod_view).status, the(admission.pod_view).position) == (AdmissionStatus.WAITING, 1)
    assert the(admission.decision.rejection).reason == "TopologyAffinityError"
    assert the(draft.state().pod_view("b")).decision == admission.decision
    assert [one.kind for one in draft.events] == [EventKind.WAITING]


def test_a_pod_that_waits_and_is_sent_again_keeps_its_place():
    before = after(empty_state(wait_enabled=True), admits("a", cpu="4"), admits("b", cpu="4"), admits("c", cpu="4"))

    again = sent(Transaction(before, clock()), pod("b", cpu="4"))

    assert (the(again.pod_view).status, the(again.pod_view).position) == (AdmissionStatus.WAITING, 1)


def test_a_pod_that_could_never_fit_is_refused_at_once():
    admission = sent(Transaction(empty_state(wait_enabled=True), clock()), pod("huge", cpu="5"))

    assert admission.pod_view is None


def test_pods_from_manifests_wait_even_where_others_are_rejected():
    before = after(empty_state(), admits("a", cpu="4"), admits("b", cpu="4", source=FILE), admits("c", cpu="4"))

    assert [entry.pod.uid for entry in before.pod_views()] == ["a", "b"]
    assert the(before.pod_view("b")).status is AdmissionStatus.WAITING
    assert the(after(before, releases("a")).pod_view("b")).status is AdmissionStatus.ADMITTED


def test_a_release_lets_in_who_waits_in_their_order():
    before = after(empty_state(wait_enabled=True), admits("a", cpu="4"), admits("b", cpu="4"), admits("c", cpu="4"))
    draft = Transaction(before, clock())

    gone = the(draft.release("a"))

    assert gone.pod.uid == "a"
    assert [(one.kind, the(one.pod).uid) for one in draft.events] == [
        (EventKind.RELEASED, "a"),
        (EventKind.ADMITTED, "b"),
    ]
    assert the(draft.state().pod_view("c")).position == 1


def test_who_does_not_fit_does_not_hold_up_who_does():
    before = after(empty_state(wait_enabled=True), admits("a", cpu="4"), admits("b", cpu="3"), admits("big", cpu="4"))

    now = after(before, admits("small", cpu="3"), releases("b"))

    assert the(now.pod_view("small")).status is AdmissionStatus.ADMITTED
    assert the(now.pod_view("big")).status is AdmissionStatus.WAITING
    assert now.waiting.overtakes == {"big": 1}


def test_who_was_overtaken_often_enough_lets_nobody_pass():
    before = after(empty_state(wait_enabled=True, max_overtakes=2), admits("a", cpu="4"), admits("big", cpu="4"))
    before = after(before, admits("s1", cpu="1"), admits("s2", cpu="1"))
    draft = Transaction(before, clock())

    admission = sent(draft, pod("s3", cpu="1"))

    assert before.waiting.overtakes == {"big": 2}
    assert the(admission.decision.rejection).reason == WAITS_ITS_TURN
    assert "default/big" in the(admission.decision.rejection).message
    assert the(admission.pod_view).position == 2
    assert the(after(draft.state(), releases("s1")).pod_view("s3")).status is AdmissionStatus.WAITING
    assert {entry.pod.uid for entry in after(draft.state(), releases("a")).pod_views()} == {"big", "s1", "s2", "s3"}
    assert not after(draft.state(), releases("a")).waiting.pods


def test_patience_that_ends_on_the_way_stops_those_behind():
    before = after(
        empty_state(wait_enabled=True, max_overtakes=1),
        admits("a", cpu="4"),
        admits("b", cpu="3"),
        admits("big", cpu="4"),
    )
    before = after(before, admits("s1", cpu="1"), admits("s2", cpu="1"))

    now = after(before, releases("b"))

    assert the(now.pod_view("s1")).status is AdmissionStatus.ADMITTED
    assert the(now.pod_view("s2")).status is AdmissionStatus.WAITING


def test_who_gives_up_waiting_lets_those_behind_it_pass():
    before = after(
        empty_state(wait_enabled=True, max_overtakes=0),
        admits("a", cpu="4"),
        admits("big", cpu="4"),
        admits("s", cpu="1"),
    )

    now = after(before, releases("big"))

    assert the(now.pod_view("s")).status is AdmissionStatus.ADMITTED


def test_too_many_that_wait_are_said_so_and_nothing_changes():
    before = after(empty_state(wait_enabled=True, capacity=1), admits("a", cpu="4"), admits("b", cpu="4"))

    with pytest.raises(BusyError):
        Transaction(before, clock()).admit(pod("c", cpu="4"))


def test_nobody_is_released_who_is_not_known():
    before = empty_state()
    draft = Transaction(before, clock())

    assert draft.release("nobody") is None
    assert draft.state() is before


def test_an_exchange_gives_the_new_pod_what_the_old_one_had_before_others_get_it():
    before = after(empty_state(wait_enabled=True), admits("old", cpu="4", source=FILE), admits("waits", cpu="4"))
    draft = Transaction(before, clock())

    (admission,) = the(draft.replace_pods(["old"], [(pod("new", cpu="4"), FILE)]))

    assert the(admission.pod_view).status is AdmissionStatus.ADMITTED
    assert [(one.pod.uid, one.status) for one in draft.state().pod_views()] == [
        ("new", AdmissionStatus.ADMITTED),
        ("waits", AdmissionStatus.WAITING),
    ]


def test_one_pod_of_an_exchange_that_cannot_be_taken_keeps_nobody_from_it():
    before = after(empty_state(), admits("a", cpu="1"))
    draft = Transaction(before, clock())

    wrong, right = the(draft.replace_pods([], [(pod("a", cpu="2"), FILE), (pod("b", cpu="2"), FILE)]))

    assert isinstance(wrong, PodError)
    assert the(right.pod_view).status is AdmissionStatus.ADMITTED


def test_one_that_cannot_be_decided_on_keeps_nobody_from_anything():
    before = after(
        empty_state(wait_enabled=True, pod_policy_annotations=True), admits("a", cpu="4"), admits("b", cpu="4")
    )
    choosy = replace(pod("odd", cpu="1"), annotations={"topology.alignup.dev/policy": "strictest"})
    odd = PodRecord(pod=choosy, since=0.0, source="api", decision=ANY_DECISION)
    before = replace(before, waiting=replace(before.waiting, pods={"odd": odd, **before.waiting.pods}))

    now = after(before, releases("a"))

    assert the(now.pod_view("b")).status is AdmissionStatus.ADMITTED
    assert list(now.waiting.pods) == ["odd"]


def test_devices_announced_let_in_who_waited_for_them():
    asks = {"cpu": "1", "gpu": "1"}
    before = after(empty_state(wait_enabled=True), *(admits(uid, **asks) for uid in "abc"))
    more = [Device(GPU, f"gpu-{number}", nodes=1 << number % 2) for number in range(4)]
    draft = Transaction(before, clock())

    draft.set_devices(GPU, more)

    (pending,) = draft.started
    assert the(before.pod_view("c")).status is AdmissionStatus.WAITING
    assert (
        the(after(draft.state(), lambda one: one.commit(pending, {})).pod_view("c")).status is AdmissionStatus.ADMITTED
    )
    assert draft.events[0].kind is EventKind.ANNOUNCED
    assert "4 of 4 devices" in draft.events[0].detail


@settings(max_examples=50)
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
def test_whatever_comes_and_goes_the_books_are_right(jobs, wait, patience):
    """Ledger and known pods agree, nobody is in two places, and everybody waits only for good reason."""
    now = empty_state(wait_enabled=wait, max_overtakes=patience)
    idle = now.host.ledger
    for uid, cpu, what in jobs:
        draft = Transaction(now, clock())
        try:
            draft.admit(pod(uid, cpu=cpu)) if what == "admit" else draft.release(uid)
        except PodError:
            continue
        now = draft.state()

        check_sound(now.host, f"after {what} {uid}")
        assert list(now.admitted) == list(now.host.ledger.pods)
        assert not now.admitted.keys() & now.waiting.pods.keys()
        first = next(iter(now.waiting.pods.values()), None)
        if first is not None:
            assert wait
            assert not now.host.decide(first.pod).admitted

    for entry in now.pod_views():
        now = after(now, releases(entry.pod.uid))
    assert now.pod_views() == ()
    assert replace(now.host.ledger, used=idle.used) == idle
