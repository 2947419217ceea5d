"""Leader election by a Lease, on a clock that the tests set."""

import asyncio

import pytest

from alignup.kubernetes.api import LEASES, ApiClient, LeaderElection, Timing
from alignup.kubernetes.api.access import Access
from alignup.testing.api_server import ApiFault
from tests.deadlines import until
from tests.kubernetes.api.tasks import running

pytestmark = pytest.mark.anyio

REF = LEASES.at("alignup", namespace="kube-system")


class SteppedClock:
    """Time that passes only when a test says so."""

    def __init__(self):
        self.now = 0.0
        self.day = 0.0  #: the time of day minus this clock's
        self._sleepers = []

    async def sleep(self, seconds):
        sleeper = (self.now + seconds, asyncio.Event())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1].wait()
        finally:
            self._sleepers.remove(sleeper)

    async def advance(self, seconds, *, candidates):
        """Let time pass; after every half second wait until all candidates sleep again."""
        for _ in range(int(seconds * 2)):
            await until(lambda: len(self._sleepers) == candidates)
            self.now += 0.5
            for end, event in tuple(self._sleepers):
                if end <= self.now:
                    event.set()
            await until(lambda: not any(event.is_set() for _, event in self._sleepers))
        await until(lambda: len(self._sleepers) == candidates)


@pytest.fixture
def clock():
    return SteppedClock()


@pytest.fixture
def tasks():
    """The task of each candidate."""
    return {}


@pytest.fixture
async def candidate(server, clock, tasks):
    """Start candidates; each has a client and a task of its own."""
    clients = []
    async with running() as start:

        def candidate(identity, lead=None):
            timing = Timing(
                sleep=clock.sleep,
                clock=lambda: clock.now,
                random=lambda: 0.0,
                time_of_day=lambda: clock.now + clock.day,
                attempts=1,
            )
            clients.append(ApiClient(Access(server=server.url), timing=timing))
            election = LeaderElection(clients[-1], name="alignup", namespace="kube-system", identity=identity)
            tasks[identity] = start(election.run(lead or asyncio.Event().wait))
            return election

        yield candidate
    for client in clients:
        await client.__aexit__(None, None, None)


@pytest.fixture
async def two(candidate):
    """A leader, and a candidate that knows it."""
    first = candidate("first")
    await until(lambda: first.leading)
    second = candidate("second")
    await until(lambda: second.leader == "first")
    return first, second


async def test_the_first_candidate_leads_and_renews(client, clock, two):
    first, second = two

    await clock.advance(40, candidates=2)

    lease = (await client.get(REF)).spec
    assert (first.leading, second.leading) == (True, False)
    assert (lease.holder_identity, lease.lease_duration_seconds, lease.lease_transitions) == ("first", 15, 0)
    assert (lease.acquire_time, lease.renew_time) == ("1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:40.000000Z")


async def test_jumps_of_the_time_of_day_end_no_lease(client, clock, two):
    first, second = two

    for day in (1e9, 0.0, 4e9, 1.0):
        clock.day = day
        await clock.advance(20, candidates=2)
        assert (first.leading, second.leading) == (True, False)
    assert (await client.get(REF)).spec.lease_transitions == 0


async def test_a_leader_that_stops_gives_up_the_lease(client, clock, two, tasks):
    first, second = two

    tasks["first"].cancel()
    await until(lambda: not first.leading)
    await until(tasks["first"].done)
    await clock.advance(4, candidates=1)
    await until(lambda: second.leading)

    assert (await client.get(REF)).spec.lease_transitions == 1


async def test_a_leader_that_died_is_replaced_when_its_lease_ends(server, clock, candidate):
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": "2099-01-01T00:00:00.000000Z"}
    metadata = {"name": "alignup", "namespace": "kube-system"}
    server.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})
    second = candidate("second")
    await until(lambda: second.leader == "dead")

    await clock.advance(14, candidates=1)
    assert not second.leading
    await clock.advance(4, candidates=1)

    await until(lambda: second.leading)


async def test_a_leader_that_cannot_renew_stops_before_another_starts(server, clock, candidate):
    ended = []

    async def lead():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(clock.now)

    first = candidate("first", lead)
    await until(lambda: first.leading)
    server.inject(ApiFault(status=500, times=None))

    await clock.advance(12, candidates=1)

    await until(lambda: ended)
    assert not first.leading
    assert ended[0] < 15


async def test_a_leader_continues_after_a_failed_renewal(server, clock, candidate):
    first = candidate("first")
    await until(lambda: first.leading)
    server.inject(ApiFault(status=500, times=3))

    await clock.advance(30, candidates=1)

    assert first.leading


async def test_of_two_candidates_at_once_one_leads(clock, candidate):
    both = [candidate("first"), candidate("second")]

    await until(lambda: any(candidate.leading for candidate in both))
    await clock.advance(6, candidates=2)

    assert sum(candidate.leading for candidate in both) == 1


async def test_a_lost_lease_ends_the_work_and_the_election_goes_on(client, clock, candidate):
    first = candidate("first")
    await until(lambda: first.leading)
    await client.patch(REF, {"spec": {"holderIdentity": "usurper", "leaseDurationSeconds": 10}})

    await clock.advance(2, candidates=1)
    await until(lambda: not first.leading)
    await clock.advance(16, candidates=1)

    await until(lambda: first.leading)


async def test_work_that_returns_ends_the_election(client, candidate, tasks):
    candidate("done", lambda: asyncio.sleep(0))

    await until(tasks["done"].done)

    assert (await client.get(REF)).spec.holder_identity is None


async def test_work_that_fails_ends_the_election(client):
    async def fail():
        raise LookupError("work")

    election = LeaderElection(client, name="alignup", namespace="kube-system", identity="first")
    with pytest.raises(LookupError, match="work"):
        await election.run(fail)

    assert (await client.get(REF)).spec.holder_identity is None
