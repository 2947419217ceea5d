"""The probe of the admission queue: a job that passes it proves that the agent is ready."""

import asyncio
import socket
import threading

import pytest

from alignup.agent.admission_queue import MAX_JOBS, AdmissionQueue, QueueProbe
from alignup.agent.daemon import Notifier, background_tasks
from alignup.agent.transaction import Transaction
from tests.agent.states import clock, empty_state
from tests.align.hosts import pod
from tests.deadlines import until, wait_for

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    """The thread of the queue takes real time."""
    return "asyncio"


class Blockage:
    """A job that keeps the queue busy."""

    def __init__(self, queue):
        self.queue = queue
        self.entered = threading.Event()
        self.over = threading.Event()

    async def __aenter__(self):
        self.task = asyncio.create_task(self.queue.run(self._wait))
        assert await asyncio.to_thread(self.entered.wait, 60)
        return self

    async def __aexit__(self, *_):
        self.over.set()
        await self.task

    def _wait(self, _transaction):
        self.entered.set()
        assert self.over.wait(60)


@pytest.fixture
def queue():
    made = AdmissionQueue(empty_state(), lambda *_: None, clock=clock(), dispatch=lambda _: None)
    wait_for(lambda: not made.problems())
    yield made
    made.close()


async def test_a_blocked_queue_is_not_ready_until_it_answers_again(queue):
    probe = QueueProbe(queue)
    async with Blockage(queue):
        blocked, again = [await probe.problems(seconds=0.02) for _ in range(2)]

    assert blocked == again
    assert blocked[0].startswith("the admission queue has not answered for 0.02 seconds")
    assert await probe.problems(seconds=60) == ()


async def test_many_callers_share_one_job(queue):
    probe = QueueProbe(queue)
    async with Blockage(queue):
        callers = [asyncio.create_task(probe.problems(seconds=60)) for _ in range(2 * MAX_JOBS)]
        await asyncio.sleep(0)
        admitted = asyncio.create_task(queue.run(Transaction.admit, pod("a")))
        await asyncio.sleep(0)

    assert (await admitted).decision.admitted
    assert {await caller for caller in callers} == {()}


async def test_a_queue_that_is_full_or_stopped_is_not_ready(queue):
    async with Blockage(queue):
        jobs = [asyncio.create_task(queue.run(Transaction.flush_events)) for _ in range(MAX_JOBS)]
        await asyncio.sleep(0)
        full = await QueueProbe(queue).problems(seconds=60)
    await asyncio.gather(*jobs)
    queue.close()

    assert "requests are in the queue, which is the limit" in full[0]
    assert await QueueProbe(queue).problems(seconds=60) == ("the agent is stopping; start it again",)


async def test_the_watchdog_is_notified_only_while_the_queue_answers(queue, tmp_path):
    address = str(tmp_path / "notify")
    notifier, probe = Notifier(address, watchdog=0.001), QueueProbe(queue)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as received:
        received.bind(address)
        async with Blockage(queue) as blockage, background_tasks(None, queue, probe, notifier):
            await asyncio.sleep(0)  # the task has started
            await asyncio.sleep(0)
            with pytest.raises(BlockingIOError):
                received.recv(100)
            blockage.over.set()
            await until(lambda: _has_message(received))


def _has_message(received):
    try:
        return received.recv(100) == b"WATCHDOG=1"
    except BlockingIOError:
        return False
