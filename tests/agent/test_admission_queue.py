"""The admission queue: one job at a time, durable before it is answered, or undone."""

import asyncio
import threading

import pytest

from alignup.agent.admission_queue import MAX_JOBS, AdmissionQueue
from alignup.agent.state import AdmissionStatus
from alignup.agent.transaction import Transaction
from alignup.align.errors import FileError, PodError
from alignup.web.responses import BusyError, NotReadyError
from tests.agent.states import clock, empty_state
from tests.align.hosts import pod
from tests.deadlines import wait_for

pytestmark = pytest.mark.anyio


class Disk:
    """A disk that records saved states, and can be full or blocked."""

    def __init__(self):
        self.written = []
        self.recorded = []  #: events that were saved with states
        self.full = False
        self.saving = threading.Event()  #: a save has begun since ``block``
        self.unblocked = threading.Event()
        self.unblocked.set()

    def block(self):
        self.unblocked.clear()
        self.saving.clear()

    async def wait_saving(self):
        """Return once the queue waits for a blocked save."""
        assert await asyncio.to_thread(self.saving.wait, 60)

    def __call__(self, state, events):
        self.saving.set()
        assert self.unblocked.wait(60)
        if self.full:
            raise FileError("cannot write the database: No space left on device")
        self.written.append(state)
        self.recorded += events


def wait_until_ready(queue):
    wait_for(lambda: not queue.problems())


async def submit(*jobs):
    """Put jobs into the queue, and return their tasks."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    await asyncio.sleep(0)  # each task runs until it waits for the queue
    return tasks


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def events():
    return []


@pytest.fixture
def queue(disk, events):
    started = AdmissionQueue(
        empty_state(wait_enabled=True), disk, clock=clock(), dispatch=events.extend, retry_seconds=0.01
    )
    wait_until_ready(started)
    disk.written.clear()
    yield started
    disk.full = False
    disk.unblocked.set()
    started.close()
    assert not started.alive


async def run(*jobs):
    """Run jobs concurrently; return results and errors."""
    return await asyncio.gather(*jobs, return_exceptions=True)


async def test_an_admission_is_saved_before_it_is_answered(queue, disk):
    (admission,) = await run(queue.run(Transaction.admit, pod("a")))

    assert admission.pod_view.status is AdmissionStatus.ADMITTED
    assert disk.written == [queue.state]
    assert "a" in disk.written[0].admitted


async def test_a_caller_can_wait_until_events_are_dispatched(queue, events):
    await run(
        queue.run(Transaction.admit, pod("a")),
        queue.run(Transaction.admit, pod("b", cpu="9")),
        queue.run(Transaction.flush_events),
    )

    assert [event.kind for event in events] == ["admitted", "rejected"]


def test_the_initial_state_is_saved(disk):
    first = empty_state()
    opened = AdmissionQueue(first, disk, clock=clock(), dispatch=lambda _: None)
    wait_until_ready(opened)
    opened.close()

    assert disk.written == [first]


async def test_the_decisions_of_a_batch_are_saved_with_its_state(queue, disk):
    disk.block()
    first = await submit(queue.run(Transaction.admit, pod("first", cpu="1")))
    await disk.wait_saving()
    batch = await submit(queue.run(Transaction.admit, pod("a")), queue.run(Transaction.admit, pod("b", cpu="9")))
    disk.unblocked.set()
    await asyncio.gather(*first, *batch, return_exceptions=True)

    assert [event.pod.uid for event in disk.recorded] == ["first", "a", "b"]


async def test_decisions_that_change_nothing_are_recorded_in_order(disk):
    """They are saved with the next change, or recorded before they are dispatched."""
    recorded: list = []
    queue = AdmissionQueue(empty_state(), disk, clock=clock(), dispatch=lambda _: None, record=recorded.extend)
    wait_until_ready(queue)

    await run(queue.run(Transaction.admit, pod("a", cpu="9")), queue.run(Transaction.flush_events))
    await run(queue.run(Transaction.admit, pod("b", cpu="9")))
    await run(queue.run(Transaction.admit, pod("c")), queue.run(Transaction.flush_events))
    queue.close()

    assert [event.pod.uid for event in [*recorded, *disk.recorded]] == ["a", "b", "c"]
    assert "c" not in [event.pod.uid for event in recorded]


async def test_jobs_that_change_nothing_are_not_saved(queue, disk):
    await run(queue.run(Transaction.admit, pod("a", cpu="9")))
    await run(queue.run(Transaction.release, "unknown"))

    assert disk.written == []


async def test_nothing_is_answered_or_dispatched_before_it_is_saved(queue, disk, events):
    disk.block()
    (job,) = await submit(queue.run(Transaction.admit, pod("a")))
    await disk.wait_saving()
    before_save = job.done(), queue.state.pod_views(), list(events)
    disk.unblocked.set()
    admission = await job

    assert before_save == (False, (), [])
    assert admission.pod_view.status is AdmissionStatus.ADMITTED


async def test_jobs_that_arrive_during_a_save_are_saved_together(queue, disk):
    disk.block()
    first = await submit(queue.run(Transaction.admit, pod("a", cpu="1")))
    await disk.wait_saving()
    rest = await submit(*(queue.run(Transaction.admit, pod(uid, cpu="1")) for uid in "bcd"))
    disk.unblocked.set()
    admissions = await asyncio.gather(*first, *rest)

    assert all(admission.pod_view.status is AdmissionStatus.ADMITTED for admission in admissions)
    assert [list(state.admitted) for state in disk.written] == [["a"], ["a", "b", "c", "d"]]


async def test_a_full_disk_undoes_the_decision_and_the_agent_stays_up(queue, disk, events):
    disk.full = True

    (error,) = await run(queue.run(Transaction.admit, pod("a")))

    assert isinstance(error, NotReadyError)
    assert "No space left on device" in str(error)
    assert (queue.state.pod_views(), events) == ((), [])
    assert queue.state.host.ledger.pods == {}
    assert "No space left on device" in queue.problems()[0]


async def test_a_release_that_cannot_be_saved_is_undone(queue, disk):
    await run(queue.run(Transaction.admit, pod("a")))
    disk.full = True

    (error,) = await run(queue.run(Transaction.release, "a"))

    assert isinstance(error, NotReadyError)
    assert queue.state.pod_view("a").status is AdmissionStatus.ADMITTED


async def test_the_queue_recovers_when_the_disk_has_space_again(queue, disk):
    disk.full = True
    await run(queue.run(Transaction.admit, pod("a")))
    disk.full = False

    wait_until_ready(queue)

    assert (await run(queue.run(Transaction.admit, pod("a"))))[0].pod_view.status is AdmissionStatus.ADMITTED


async def test_all_jobs_of_a_failed_batch_fail(queue, disk):
    disk.block()
    first = await submit(queue.run(Transaction.admit, pod("a", cpu="1")))
    await disk.wait_saving()
    rest = await submit(*(queue.run(Transaction.admit, pod(uid, cpu="1")) for uid in ("b", "c", "")))
    disk.full = True
    disk.unblocked.set()
    *failed, wrong = await asyncio.gather(*first, *rest, return_exceptions=True)

    assert all(isinstance(error, NotReadyError) for error in failed)
    assert isinstance(wrong, PodError)
    assert queue.state.pod_views() == ()


async def test_a_dry_run_does_not_wait_and_changes_nothing(queue, disk):
    disk.block()
    (job,) = await submit(queue.run(Transaction.admit, pod("a", cpu="4")))
    await disk.wait_saving()
    before = queue.transaction().decide(pod("b", cpu="4"))
    disk.unblocked.set()
    await job
    after = queue.transaction().decide(pod("b", cpu="4"))

    assert (before.decision.admitted, before.preference_requests) == (True, ())
    assert not after.decision.admitted
    assert [entry.pod.uid for entry in queue.state.pod_views()] == ["a"]


async def test_a_full_queue_raises_busy(queue, disk):
    disk.block()
    jobs = await submit(queue.run(Transaction.admit, pod("a")))
    await disk.wait_saving()
    jobs += await submit(*(queue.run(Transaction.release, "unknown") for _ in range(MAX_JOBS + 5)))
    disk.unblocked.set()
    answers = await asyncio.gather(*jobs, return_exceptions=True)

    assert sum(isinstance(answer, BusyError) for answer in answers) == 5
    assert (await run(queue.run(Transaction.release, "a")))[0].pod.uid == "a"


async def test_cancelling_the_caller_cancels_a_job_that_has_not_started(queue, disk):
    disk.block()
    (first,) = await submit(queue.run(Transaction.admit, pod("a", cpu="1")))
    await disk.wait_saving()
    (second,) = await submit(queue.run(Transaction.admit, pod("b", cpu="1")))
    second.cancel()
    await asyncio.wait([second])
    disk.unblocked.set()
    await first
    await queue.run(Transaction.flush_events)  # after the cancelled job

    assert [entry.pod.uid for entry in queue.state.pod_views()] == ["a"]


async def test_the_pending_pod_of_a_caller_that_is_gone_is_handed_over(queue):
    """A pod must never hold devices while no task allocates them."""
    started: list = []
    queue.start_pending = started.extend
    running, proceed = threading.Event(), threading.Event()

    def decide(transaction):
        running.set()
        assert proceed.wait(60)
        return transaction.decide(pod("a", cpu="1"))

    (caller,) = await submit(queue.run(decide))
    assert await asyncio.to_thread(running.wait, 60)
    caller.cancel()
    await asyncio.wait([caller])
    proceed.set()
    await queue.run(Transaction.flush_events)  # after the job of the caller

    assert [pending.pod.uid for pending in started] == ["a"]


async def test_the_pending_pod_of_a_caller_that_is_cancelled_with_its_result_is_handed_over(queue, disk):
    started: list = []
    queue.start_pending = started.extend

    disk.block()
    (first,) = await submit(queue.run(Transaction.admit, pod("b", cpu="1")))
    await disk.wait_saving()  # so that the next two jobs are answered in the same turn of the event loop

    async def cancel():
        await queue.run(lambda _: None)
        caller.cancel()

    canceller, caller = await submit(cancel(), queue.run(lambda change: change.decide(pod("a", cpu="1"))))
    disk.unblocked.set()
    await asyncio.wait([first, canceller, caller])

    assert caller.cancelled()
    assert [pending.pod.uid for pending in started] == ["a"]


async def test_a_read_only_queue_rejects_changes(disk):
    read_only = AdmissionQueue(
        empty_state(), disk, clock=clock(), dispatch=lambda _: None, problems=("CPU 9 is gone; do this",)
    )
    try:
        admission, error = await run(
            read_only.run(Transaction.admit, pod("a")), read_only.run(Transaction.release, "a")
        )
        tried = read_only.transaction().decide(pod("a"))
    finally:
        read_only.close()

    assert isinstance(admission, NotReadyError)
    assert "CPU 9 is gone; do this" in str(error)
    assert tried.decision.admitted
    assert read_only.problems()[0] == "CPU 9 is gone; do this"
    assert disk.written == []


async def test_close_finishes_the_jobs_in_the_queue(disk):
    closing = AdmissionQueue(empty_state(), disk, clock=clock(), dispatch=lambda _: None)

    disk.block()
    jobs = await submit(*(closing.run(Transaction.admit, pod(uid, cpu="1")) for uid in "ab"))
    await disk.wait_saving()
    disk.unblocked.set()
    await asyncio.to_thread(closing.close)
    admissions = await asyncio.gather(*jobs)

    assert all(admission.pod_view.status is AdmissionStatus.ADMITTED for admission in admissions)
    assert not closing.alive
    assert isinstance((await run(closing.run(Transaction.admit, pod("c"))))[0], NotReadyError)


async def test_a_bug_in_saving_is_reported_to_the_caller():
    def broken(_state, _events):
        raise KeyError("x")

    faulty = AdmissionQueue(empty_state(), broken, clock=clock(), dispatch=lambda _: None)
    (error,) = await run(faulty.run(Transaction.admit, pod("a")))
    problems = faulty.problems()
    faulty.close()

    assert isinstance(error, NotReadyError)
    assert "a bug in alignup: KeyError" in problems[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_queue_whose_worker_died_reports_it(disk):
    def broken(_happened):
        raise KeyError("x")

    faulty = AdmissionQueue(empty_state(), disk, clock=clock(), dispatch=broken)
    wait_until_ready(faulty)
    (admission,) = await run(faulty.run(Transaction.admit, pod("a")))
    wait_for(lambda: not faulty.alive)
    (error,) = await run(faulty.run(Transaction.admit, pod("b")))

    assert admission.pod_view.status is AdmissionStatus.ADMITTED
    assert "restart the agent" in str(error)
    assert faulty.problems() == (str(error),)


async def test_concurrent_jobs_never_allocate_a_resource_twice(queue, disk):
    uids = [f"p{number}" for number in range(60)]

    await run(*(queue.run(Transaction.admit, pod(uid, cpu="1")) for uid in uids))
    await run(
        *(queue.run(Transaction.release, uid) for uid in uids[::2]),
        *(queue.run(Transaction.admit, pod(uid, cpu="2")) for uid in ("x", "y")),
    )
    await run(*(queue.run(Transaction.release, uid) for uid in [*uids, "x", "y"]))

    assert queue.state.pod_views() == ()
    assert queue.state.host.ledger.by_provider() == empty_state().host.ledger.by_provider()
    assert disk.written[-1] == queue.state
