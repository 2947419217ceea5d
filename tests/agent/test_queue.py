"""The desk: one job at a time, durable before it is answered, undone when it cannot be."""

import asyncio
import threading
import time

import pytest

from alignup.agent import queue as desks
from alignup.agent.queue import AdmissionQueue
from alignup.agent.transaction import Transaction
from alignup.align.errors import FileError, PodError
from alignup.schema.api import AdmissionStatus, BusyError, NotReadyError
from tests.agent.states import clock, empty_state
from tests.align.hosts import pod


class Disk:
    """Remembers what was written, and can be full, slow or stuck."""

    def __init__(self):
        self.written = []
        self.full = False
        self.unblocked = threading.Event()
        self.unblocked.set()

    def __call__(self, what):
        self.unblocked.wait(10)
        if self.full:
            raise FileError("cannot write checkpoint.json: No space left on device")
        self.written.append(what)


def wait_until_ready(desk):
    deadline = time.monotonic() + 10
    while desk.problems() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert desk.problems() == ()


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def told():
    return []


@pytest.fixture
def desk(disk, told):
    made = AdmissionQueue(empty_state(wait_enabled=True), disk, clock=clock(), dispatch=told.extend)
    wait_until_ready(made)
    disk.written.clear()
    yield made
    disk.full = False
    disk.unblocked.set()
    made.close()
    assert not made.alive


def run(*jobs):
    """The answers to jobs that are all asked for at once; an error is an answer too."""

    async def together():
        return await asyncio.gather(*jobs, return_exceptions=True)

    return asyncio.run(together())


def test_an_admission_is_on_disk_when_it_is_answered(desk, disk):
    (admission,) = run(desk.run(Transaction.admit, pod("a")))

    assert admission.pod_view.status is AdmissionStatus.ADMITTED
    assert disk.written == [desk.state]
    assert "a" in disk.written[0].admitted


def test_whoever_asks_can_wait_until_everybody_has_heard(desk, told):
    run(desk.run(Transaction.admit, pod("a")), desk.run(Transaction.admit, pod("b", cpu="9")), desk.wait_for_events())

    assert [one.kind for one in told] == ["admitted", "rejected"]


def test_what_stands_at_first_is_written_too(disk):
    first = empty_state()
    opened = AdmissionQueue(first, disk, clock=clock(), dispatch=lambda _: None)
    wait_until_ready(opened)
    opened.close()

    assert disk.written == [first]


def test_what_changes_nothing_is_not_written(desk, disk):
    run(desk.run(Transaction.admit, pod("a", cpu="9")))
    run(desk.run(Transaction.release, "nobody"))

    assert disk.written == []


def test_nobody_hears_of_it_while_it_is_not_on_disk(desk, disk, told):
    async def impatient():
        disk.unblocked.clear()
        asked = asyncio.ensure_future(desk.run(Transaction.admit, pod("a")))
        await asyncio.sleep(0.05)
        seen = asked.done(), desk.state.pod_views(), list(told)
        disk.unblocked.set()
        return seen, await asked

    seen, admission = asyncio.run(impatient())

    assert seen == (False, (), [])
    assert admission.pod_view.status is AdmissionStatus.ADMITTED


def test_jobs_that_come_meanwhile_are_written_together(desk, disk):
    async def crowd():
        disk.unblocked.clear()
        first = asyncio.ensure_future(desk.run(Transaction.admit, pod("a", cpu="1")))
        await asyncio.sleep(0.05)
        rest = [asyncio.ensure_future(desk.run(Transaction.admit, pod(uid, cpu="1"))) for uid in "bcd"]
        await asyncio.sleep(0.05)
        disk.unblocked.set()
        return [await first, *[await one for one in rest]]

    admissions = asyncio.run(crowd())

    assert all(admission.pod_view.status is AdmissionStatus.ADMITTED for admission in admissions)
    assert [list(what.admitted) for what in disk.written] == [["a"], ["a", "b", "c", "d"]]


def test_a_full_disk_undoes_the_decision_and_the_agent_stays_up(desk, disk, told):
    disk.full = True

    (error,) = run(desk.run(Transaction.admit, pod("a")))

    assert isinstance(error, NotReadyError)
    assert "No space left on device" in str(error)
    assert (desk.state.pod_views(), told) == ((), [])
    assert desk.host.ledger.pods == {}
    assert "No space left on device" in desk.problems()[0]


def test_a_release_that_cannot_be_written_did_not_happen(desk, disk):
    run(desk.run(Transaction.admit, pod("a")))
    disk.full = True

    (error,) = run(desk.run(Transaction.release, "a"))

    assert isinstance(error, NotReadyError)
    assert desk.state.pod_view("a").status is AdmissionStatus.ADMITTED


def test_when_there_is_room_again_the_desk_is_ready_by_itself(desk, disk):
    disk.full = True
    run(desk.run(Transaction.admit, pod("a")))
    disk.full = False

    wait_until_ready(desk)

    assert run(desk.run(Transaction.admit, pod("a")))[0].pod_view.status is AdmissionStatus.ADMITTED


def test_all_that_was_to_be_written_together_fails_together(desk, disk):
    async def crowd():
        disk.unblocked.clear()
        first = asyncio.ensure_future(desk.run(Transaction.admit, pod("a", cpu="1")))
        await asyncio.sleep(0.05)
        rest = [
            asyncio.ensure_future(desk.run(Transaction.admit, pod(uid, cpu=cpu)))
            for uid, cpu in (("b", "1"), ("c", "1"))
        ]
        wrong = asyncio.ensure_future(desk.run(Transaction.admit, pod("", cpu="1")))
        await asyncio.sleep(0.05)
        disk.full = True
        disk.unblocked.set()
        return await asyncio.gather(first, *rest, wrong, return_exceptions=True)

    *failed, wrong = asyncio.run(crowd())

    assert all(isinstance(error, NotReadyError) for error in failed)
    assert isinstance(wrong, PodError)
    assert desk.state.pod_views() == ()


def test_a_dry_run_is_decided_at_once_and_changes_nothing(desk, disk):
    async def beside():
        disk.unblocked.clear()
        asked = asyncio.ensure_future(desk.run(Transaction.admit, pod("a", cpu="4")))
        await asyncio.sleep(0.05)
        tried = desk.transaction().decide(pod("b", cpu="4"))
        disk.unblocked.set()
        await asked
        return tried, desk.transaction().decide(pod("b", cpu="4"))

    before, after = asyncio.run(beside())

    assert (before.decision.admitted, before.preference_requests) == (True, ())
    assert not after.decision.admitted
    assert [entry.pod.uid for entry in desk.state.pod_views()] == ["a"]


def test_a_queue_that_is_full_says_so(desk, disk):
    async def flood():
        disk.unblocked.clear()
        asked = [asyncio.ensure_future(desk.run(Transaction.release, "a")) for _ in range(3)]
        asked += [asyncio.ensure_future(desk.run(Transaction.admit, pod("a")))]
        await asyncio.sleep(0.05)
        asked += [asyncio.ensure_future(desk.run(Transaction.release, "nobody")) for _ in range(desks.MAX_JOBS + 5)]
        await asyncio.sleep(0.1)
        disk.unblocked.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(flood())

    assert sum(isinstance(answer, BusyError) for answer in answers) == 5
    assert run(desk.run(Transaction.release, "a"))[0].pod.uid == "a"


def test_whoever_leaves_before_its_turn_takes_its_job_along(desk, disk):
    async def leave():
        disk.unblocked.clear()
        first = asyncio.ensure_future(desk.run(Transaction.admit, pod("a", cpu="1")))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(desk.run(Transaction.admit, pod("b", cpu="1")))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0.05)
        disk.unblocked.set()
        await first

    asyncio.run(leave())

    assert [entry.pod.uid for entry in desk.state.pod_views()] == ["a"]


def test_a_desk_that_was_barred_answers_questions_only(disk):
    barred = AdmissionQueue(
        empty_state(), disk, clock=clock(), dispatch=lambda _: None, problems=("CPU 9 is gone; do this",)
    )
    try:
        admission, error = run(barred.run(Transaction.admit, pod("a")), barred.run(Transaction.release, "a"))
        tried = barred.transaction().decide(pod("a"))
    finally:
        barred.close()

    assert isinstance(admission, NotReadyError)
    assert "CPU 9 is gone; do this" in str(error)
    assert tried.decision.admitted
    assert barred.problems()[0] == "CPU 9 is gone; do this"
    assert disk.written == []


def test_jobs_in_the_queue_are_finished_before_the_desk_closes(disk):
    closing = AdmissionQueue(empty_state(), disk, clock=clock(), dispatch=lambda _: None)

    async def close():
        disk.unblocked.clear()
        asked = [asyncio.ensure_future(closing.run(Transaction.admit, pod(uid, cpu="1"))) for uid in "ab"]
        await asyncio.sleep(0.05)
        disk.unblocked.set()
        await asyncio.to_thread(closing.close)
        return await asyncio.gather(*asked)

    admissions = asyncio.run(close())

    assert all(admission.pod_view.status is AdmissionStatus.ADMITTED for admission in admissions)
    assert not closing.alive
    assert isinstance(run(closing.run(Transaction.admit, pod("c")))[0], NotReadyError)


def test_a_fault_of_ours_in_writing_is_an_answer_too():
    def broken(_standing):
        raise KeyError("x")

    faulty = AdmissionQueue(empty_state(), broken, clock=clock(), dispatch=lambda _: None)
    (error,) = run(faulty.run(Transaction.admit, pod("a")))
    problems = faulty.problems()
    faulty.close()

    assert isinstance(error, NotReadyError)
    assert "a bug in alignup: KeyError" in problems[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_desk_that_has_ended_by_a_fault_of_ours_says_so(disk):
    def broken(_happened):
        raise KeyError("x")

    faulty = AdmissionQueue(empty_state(), disk, clock=clock(), dispatch=broken)
    wait_until_ready(faulty)
    (admission,) = run(faulty.run(Transaction.admit, pod("a")))
    faulty._thread.join(10)  # noqa: SLF001 - there is no other way to see it end
    (error,) = run(faulty.run(Transaction.admit, pod("b")))

    assert admission.pod_view.status is AdmissionStatus.ADMITTED
    assert "restart the agent" in str(error)
    assert faulty.problems() == (str(error),)


def test_whatever_is_asked_at_once_nothing_is_given_twice(desk, disk):
    uids = [f"p{number}" for number in range(60)]

    run(*(desk.run(Transaction.admit, pod(uid, cpu="1")) for uid in uids))
    run(
        *(desk.run(Transaction.release, uid) for uid in uids[::2]),
        *(desk.run(Transaction.admit, pod(uid, cpu="2")) for uid in ("x", "y")),
    )
    run(*(desk.run(Transaction.release, uid) for uid in [*uids, "x", "y"]))

    assert desk.state.pod_views() == ()
    assert desk.host.ledger.by_provider() == empty_state().host.ledger.by_provider()
    assert disk.written[-1] is desk.state
