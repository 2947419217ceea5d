"""What pods may carry is limited, and a ledger that is full admits no more pods but still releases them."""

import asyncio
from dataclasses import replace

import pytest

from alignup.agent.admission_queue import AdmissionQueue
from alignup.agent.recovery import RecoveryOptions, recover
from alignup.agent.state import MAX_GRANT_BYTES, MAX_METADATA, AgentState
from alignup.agent.transaction import Transaction
from alignup.align.errors import PodError
from alignup.documents import codec
from alignup.store.state_store import StateStore
from alignup.web.responses import LedgerFullError, service_problem
from tests.agent.plugin_rig import start_rig
from tests.agent.states import clock, empty_state, quiet_history, stored
from tests.align.hosts import host, pod
from tests.deadlines import wait_for
from tests.grpc_fixtures import anyio_backend, one_loop

__all__ = ["anyio_backend", "one_loop"]


SMALL, LARGE = {"note": "x" * 100}, {"note": "x" * 6_000}


class LimitedAgent:
    """An admission queue whose ledger may have *size* bytes with a new pod."""

    def __init__(self, directory, *, size, state=None):
        self.directory = directory
        state = state or empty_state(wait_enabled=True)
        self.store = StateStore(directory, limit=size)
        save = quiet_history(self.store).save
        self.queue = AdmissionQueue(state, save, clock=clock(), dispatch=lambda _: None, retry_seconds=0.01)
        wait_for(lambda: not self.queue.problems())

    def close(self):
        self.queue.close()
        self.store.close()

    def run(self, *jobs):
        """Run jobs concurrently; return results and errors."""

        async def together():
            return await asyncio.gather(*(self.queue.run(*job) for job in jobs), return_exceptions=True)

        return asyncio.run(together())

    def admit(self, uid, **options):
        return self.run((Transaction.admit, pod(uid, **options)))[0]

    def recovered(self) -> AgentState:
        result = recover(StateStore(self.directory), host(), options=RecoveryOptions(wait_enabled=True), now=0.0)
        assert result.problems == ()
        return result.state

    def size(self) -> int:
        """Return the bytes of all pods in the database."""
        state = stored(self.directory)
        return sum(len(codec.encode(document)) for document in (*state.pods, *state.waiting))


@pytest.fixture
def start(tmp_path):
    agents = []

    def start(**options):
        agents.append(LimitedAgent(tmp_path, **options))
        return agents[-1]

    yield start
    for agent in agents:
        agent.close()


def test_a_full_ledger_admits_no_pod_and_can_be_read_again(start):
    agent = start(size=4_000)

    results = [agent.admit(f"p{number}", cpu="1m", annotations=SMALL) for number in range(12)]

    admitted = [result for result in results if not isinstance(result, Exception)]
    rejected = [result for result in results if isinstance(result, Exception)]
    assert len(admitted) >= 3
    assert {type(error) for error in rejected} == {LedgerFullError}
    assert "the ledger is full: it would have 4" in str(rejected[0])
    assert service_problem(rejected[0]).status == 507
    assert agent.queue.problems() == ()
    assert 3_000 < agent.size() <= 4_000
    assert list(agent.recovered().admitted) == list(agent.queue.state.admitted)


def test_a_full_ledger_releases_pods(start):
    agent = start(size=4_000)
    while not isinstance(agent.admit(f"p{len(agent.queue.state.admitted)}", cpu="1m", annotations=SMALL), Exception):
        pass
    kept, *others = agent.queue.state.admitted

    for uid in others:
        assert agent.run((Transaction.release, uid))[0] is not None

    assert list(agent.recovered().admitted) == [kept]
    assert not isinstance(agent.admit("new", cpu="1m", annotations=SMALL), Exception)


def test_only_the_jobs_that_do_not_fit_are_rejected(start):
    agent = start(size=3_500)
    agent.admit("old", cpu="1m")

    first, large, released, small = agent.run(
        (Transaction.admit, pod("first", cpu="1m")),
        (Transaction.admit, pod("large", cpu="1m", annotations=LARGE)),
        (Transaction.release, "old"),
        (Transaction.admit, pod("small", cpu="1m")),
    )

    assert isinstance(large, LedgerFullError)
    assert first.pod_view.pod.uid == "first"
    assert (released.pod.uid, small.pod_view.pod.uid) == ("old", "small")
    assert list(agent.recovered().admitted) == ["first", "small"]


def test_a_release_succeeds_even_if_the_waiting_pods_would_not_fit(start):
    """They stay in the wait queue."""
    trial = start(size=1 << 20)
    for uid, cpu in (("a", "4"), ("b", "3"), *((f"w{number}", "1") for number in range(6))):
        trial.admit(uid, cpu=cpu)
    before = trial.queue.state
    size = trial.size()
    trial.close()
    agent = start(size=size, state=before)

    (released,) = agent.run((Transaction.release, "a"))

    assert released.pod.uid == "a"
    assert list(agent.queue.state.admitted) == ["b"]
    assert len(agent.recovered().waiting) == 6


@pytest.mark.parametrize(
    "changes", [{"labels": {"a": "x" * MAX_METADATA}}, {"annotations": {"x" * MAX_METADATA: "a"}}], ids=list
)
def test_a_pod_that_carries_too_much_is_rejected(changes):
    transaction = Transaction(empty_state(), clock())

    with pytest.raises(PodError) as caught:
        transaction.admit(replace(pod("a"), **changes))

    assert [problem.field for problem in caught.value.problems] == ["metadata.annotations"]
    assert transaction.state().pod_views() == ()


@pytest.mark.anyio
async def test_a_pod_whose_plugins_return_too_much_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr("alignup.agent.device_allocator.MAX_GRANT_BYTES", 10)

    async with start_rig(tmp_path) as rig, rig.plugin():
        result = await rig.admit(pod("a", gpu="1"))

        assert result.pod_view is None
        assert "for the pod, and the limit is 10" in result.decision.rejection.message
        assert rig.free() == 4
    assert MAX_GRANT_BYTES == 256 << 10
