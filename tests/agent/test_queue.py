"""The desk: one job at a time, durable before it is answered, undone when it cannot be."""

import asyncio
import threading
import time

import pytest

from alignup.agent import queue as desks
from alignup.agent.queue import AdmissionQueue
from alignup.align.errors import FileError, PodError
from alignup.schema.api import AdmissionStatus, BusyError, NotReadyError
from tests.agent.rooms import clock, standing
from tests.align.hosts import pod


class Disk:
    """Remembers what was written, and can be full, slow or stuck."""

    def __init__(self):
        self.written = []
        self.full = False
        self.check_time = threading.Event()
        self.check_time.set()

    def __call__(self, what):
        self.check_time.wait(10)
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
    made = AdmissionQueue(standing(wait=True), disk, clock=clock(), tell=told.extend)
    wait_until_ready(made)
    disk.written.clear()
    yield made
    disk.full = False
    disk.check_time.set()
    made.close()
    assert not made.alive


def run(*jobs):
    """The answers to jobs that are all asked for at once; an error is an answer too."""

    async def together():
        return await asyncio.gather(*jobs, return_exceptions=True)

    return asyncio.run(together())


def test_an_admission_is_on_disk_when_it_is_answered(desk, disk):
    (admission,) = run(desk.admit(pod("a")))

    assert admission.pod_view.status is AdmissionStatus.ADMITTED
    assert disk.written == [desk.standing]
    assert "a" in disk.written[0].held


def test_whoever_asks_can_wait_until_everybody_has_heard(desk, told):
    run(desk.admit(pod("a")), desk.admit(pod("b", cpu="9")), desk.told())

    assert [one.kind for one in told] == ["admitted", "rejected"]


def test_what_stands_at_first_is_written_too(disk):
    first = standing()
    opened = AdmissionQueue(first, disk, clock=clock(), tell=lambda _: None)
    wait_until_ready(opened)
    opened.close()

    assert disk.written == [first]


def test_what_changes_nothing_is_not_written(desk, disk):
    run(desk.admit(pod("a", cpu="9")))
    run(desk.release("nobody"))

    assert disk.written == []


def test_nobody_hears_of_it_while_it_is_not_on_disk(desk, disk, told):
    async def impatient():
        disk.check_time.clear()
        asked = asyncio.ensure_future(desk.admit(pod("a")))
        await asyncio.sleep(0.05)
        seen = asked.done(), desk.pod_views(), list(told)
        disk.check_time.set()
        return seen, await asked

    seen, admission = asyncio.run(impatient())

    assert seen == (False, (), [])
    assert admission.pod_view.status is AdmissionStatus.ADMITTED


def test_jobs_that_come_meanwhile_are_written_together(desk, disk):
    async def crowd():
        disk.check_time.clear()
        first = asyncio.ensure_future(desk.admit(pod("a", cpu="1")))
        await asyncio.sleep(0.05)
        rest = [asyncio.ensure_future(desk.admit(pod(uid, cpu="1"))) for uid in "bcd"]
        await asyncio.sleep(0.05)
        disk.check_time.set()
        return [await first, *[await one for one in rest]]

    admissions = asyncio.run(crowd())

    assert all(admission.pod_view.status is AdmissionStatus.ADMITTED for admission in admissions)
    assert [list(what.held) for what in disk.written] == [["a"], ["a", "b", "c", "d"]]


def test_a_full_disk_undoes_the_decision_and_the_agent_stays_up(desk, disk, told):
    disk.full = True

    (error,) = run(desk.admit(pod("a")))

    assert isinstance(error, NotReadyError)
    assert "No space left on device" in str(error)
    assert (desk.pod_views(), told) == ((), [])
    assert desk.host.ledger.pods == {}
    assert "No space left on device" in desk.problems()[0]


def test_a_release_that_cannot_be_written_did_not_happen(desk, disk):
    run(desk.admit(pod("a")))
    disk.full = True

    (error,) = run(desk.release("a"))

    assert isinstance(error, NotReadyError)
    assert desk.pod_view("a").status is AdmissionStatus.ADMITTED


def test_when_there_is_room_again_the_desk_is_ready_by_itself(desk, disk):
    disk.full = True
    run(desk.admit(pod("a")))
    disk.full = False

    wait_until_ready(desk)

    assert run(desk.admit(pod("a")))[0].pod_view.status is AdmissionStatus.ADMITTED


def test_all_that_was_to_be_written_together_fails_together(desk, disk):
    async def crowd():
        disk.check_time.clear()
        first = asyncio.ensure_future(desk.admit(pod("a", cpu="1")))
        await asyncio.sleep(0.05)
        rest = [asyncio.ensure_future(desk.admit(pod(uid, cpu=cpu))) for uid, cpu in (("b", "1"), ("c", "1"))]
        wrong = asyncio.ensure_future(desk.admit(pod("", cpu="1")))
        await asyncio.sleep(0.05)
        disk.full = True
        disk.check_time.set()
        return await asyncio.gather(first, *rest, wrong, return_exceptions=True)

    *failed, wrong = asyncio.run(crowd())

    assert all(isinstance(error, NotReadyError) for error in failed)
    assert isinstance(wrong, PodError)
    assert desk.pod_views() == ()


def test_a_dry_run_is_decided_at_once_and_changes_nothing(desk, disk):
    async def beside():
        disk.check_time.clear()
        asked = asyncio.ensure_future(desk.admit(pod("a", cpu="4")))
        await asyncio.sleep(0.05)
        tried = await asyncio.wait_for(desk.consider(pod("b", cpu="4"), {}), 5)
        disk.check_time.set()
        await asked
        return tried, await desk.consider(pod("b", cpu="4"), {})

    (before, asks), (after, _) = asyncio.run(beside())

    assert (before.admitted, asks) == (True, ())
    assert not after.admitted
    assert [entry.pod.uid for entry in desk.pod_views()] == ["a"]


def test_a_queue_that_is_full_says_so(desk, disk):
    async def flood():
        disk.check_time.clear()
        asked = [asyncio.ensure_future(desk.release("a")) for _ in range(3)]
        asked += [asyncio.ensure_future(desk.admit(pod("a")))]
        await asyncio.sleep(0.05)
        asked += [asyncio.ensure_future(desk.release("nobody")) for _ in range(desks.MAX_JOBS + 5)]
        await asyncio.sleep(0.1)
        disk.check_time.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(flood())

    assert sum(isinstance(answer, BusyError) for answer in answers) == 5
    assert run(desk.release("a"))[0].pod.uid == "a"


def test_whoever_leaves_before_its_turn_takes_its_job_along(desk, disk):
    async def leave():
        disk.check_time.clear()
        first = asyncio.ensure_future(desk.admit(pod("a", cpu="1")))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(desk.admit(pod("b", cpu="1")))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0.05)
        disk.check_time.set()
        await first

    asyncio.run(leave())

    assert [entry.pod.uid for entry in desk.pod_views()] == ["a"]


def test_a_desk_that_was_barred_answers_questions_only(disk):
    barred = AdmissionQueue(standing(), disk, clock=clock(), tell=lambda _: None, problems=("CPU 9 is gone; do this",))
    try:
        admission, error, tried = run(barred.admit(pod("a")), barred.release("a"), barred.consider(pod("a"), {}))
    finally:
        barred.close()

    assert isinstance(admission, NotReadyError)
    assert "CPU 9 is gone; do this" in str(error)
    assert tried[0].admitted
    assert barred.problems()[0] == "CPU 9 is gone; do this"
    assert disk.written == []


def test_jobs_in_the_queue_are_finished_before_the_desk_closes(disk):
    closing = AdmissionQueue(standing(), disk, clock=clock(), tell=lambda _: None)

    async def close():
        disk.check_time.clear()
        asked = [asyncio.ensure_future(closing.admit(pod(uid, cpu="1"))) for uid in "ab"]
        await asyncio.sleep(0.05)
        disk.check_time.set()
        await asyncio.to_thread(closing.close)
        return await asyncio.gather(*asked)

    admissions = asyncio.run(close())

    assert all(admission.pod_view.status is AdmissionStatus.ADMITTED for admission in admissions)
    assert not closing.alive
    assert isinstance(run(closing.admit(pod("c")))[0], NotReadyError)


def test_a_fault_of_ours_in_writing_is_an_answer_too():
    def broken(_standing):
        raise KeyError("x")

    faulty = AdmissionQueue(standing(), broken, clock=clock(), tell=lambda _: None)
    (error,) = run(faulty.admit(pod("a")))
    problems = faulty.problems()
    faulty.close()

    assert isinstance(error, NotReadyError)
    assert "a fault of alignup: KeyError" in problems[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_desk_that_has_ended_by_a_fault_of_ours_says_so(disk):
    def broken(_happened):
        raise KeyError("x")

    faulty = AdmissionQueue(standing(), disk, clock=clock(), tell=broken)
    wait_until_ready(faulty)
    (admission,) = run(faulty.admit(pod("a")))
    faulty._thread.join(10)  # noqa: SLF001 - there is no other way to see it end
    (error,) = run(faulty.admit(pod("b")))

    assert admission.pod_view.status is AdmissionStatus.ADMITTED
    assert "start the agent again" in str(error)
    assert faulty.problems() == (str(error),)


def test_whatever_is_asked_at_once_nothing_is_given_twice(desk, disk):
    uids = [f"p{number}" for number in range(60)]

    run(*(desk.admit(pod(uid, cpu="1")) for uid in uids))
    run(*(desk.release(uid) for uid in uids[::2]), *(desk.admit(pod(uid, cpu="2")) for uid in ("x", "y")))
    run(*(desk.release(uid) for uid in [*uids, "x", "y"]))

    assert desk.pod_views() == ()
    assert desk.host.ledger.by_provider() == standing().host.ledger.by_provider()
    assert disk.written[-1] is desk.standing
