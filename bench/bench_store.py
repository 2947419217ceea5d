"""The cost of durability: an admission or a release in the database, and a start from it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, time

import structlog

from alignup.agent.event_history import EventHistory
from alignup.agent.state import AgentState, Clock
from alignup.agent.transaction import Transaction
from alignup.align.host import Host
from alignup.align.settings import Policy
from alignup.documents import codec
from alignup.documents.decisions import decision_document
from alignup.documents.ledgers import pod_entry, restore_ledger
from alignup.store.state_store import DurableState, HeldPodDocument, StateStore
from bench.bench_admit import host, pod
from bench.harness import Figure, best, best_cpu, durable_write_time, median_time

MANY, WAITING = 5_000, 1_000
MEMORY = Path("/dev/shm")  # noqa: S108 - shows the cost without a disk


def figures() -> Iterator[Figure]:
    """Budgets: 4 ms for a change, 0.5 s for a start with 500 pods; 5,000 pods cost at most 1.3 times none."""
    yield from saving()
    yield from releasing()
    yield from starting()
    yield from history()


def saving() -> Iterator[Figure]:
    """Admit a pod in the agent, without its HTTP server: decide, and save it with its decision. Then release it."""
    places = {"on disk": None, "without a disk": MEMORY}  # a slow disk would hide what grows with the pods
    for where, place in places.items():
        if place is not None and not place.is_dir():
            continue
        with TemporaryDirectory(dir=place) as directory:
            few, many = (Resident(pods, Path(directory) / f"{pods}") for pods in (0, MANY))
            rounds = [(median_time(few.admit_and_release), median_time(many.admit_and_release)) for _ in range(5)]
            alone = min(seconds for seconds, _ in rounds) / 2
            crowded = min(seconds for _, seconds in rounds) / 2
            few.store.close()
            many.store.close()
            note = "" if place else f"one fdatasync of 4 KiB here: {durable_write_time(Path(directory)) * 1e3:.2f} ms"
            yield Figure(f"change with 0 pods held, {where}, median", alone, 4e-3, note)
            ratio = f"{crowded / alone:.2f} times that of 0 pods"
            yield Figure(f"change with {MANY:,} pods held, {where}, median", crowded, 1.3 * alone, ratio)


class Resident:
    """The part of an agent that decides and saves, with many small pods."""

    def __init__(self, pods: int, directory: Path) -> None:
        idle = host(2, Policy.BEST_EFFORT, cpus=256)
        self.state = AgentState(host=idle, idle_ledger=idle.ledger)
        self.clock = Clock(now=time, monotonic=perf_counter)
        transaction = Transaction(self.state, self.clock)
        for number in range(pods):
            transaction.admit(pod(f"pod-{number}", cpus=0.01, memory="1Mi", gpus=0))
        self.state = transaction.state()
        assert len(self.state.admitted) == pods
        self.store = StateStore(directory)
        self.history = EventHistory(self.store, structlog.get_logger())
        self.history.save(self.state)
        self.numbers = count()

    def run(self, job: Callable[[Transaction], object]) -> None:
        transaction = Transaction(self.state, self.clock)
        job(transaction)
        self.state = transaction.state()
        self.history.save(self.state, transaction.events)

    def admit_and_release(self) -> None:
        uid = f"new-{next(self.numbers)}"
        self.run(lambda transaction: transaction.admit(pod(uid, cpus=1, memory="256Mi", gpus=0)))
        self.run(lambda transaction: transaction.release(uid))


def releasing() -> Iterator[Figure]:
    """Release a pod while 1,000 pods wait that all request something else, and none fits."""
    clock = Clock(now=time, monotonic=perf_counter)
    idle = host(2, Policy.SINGLE_NUMA_NODE, cpus=256)
    transaction = Transaction(AgentState(host=idle, idle_ledger=idle.ledger, wait_enabled=True), clock)
    for uid, cpus in {"most": 120, "other": 118, "last": 4}.items():
        transaction.admit(pod(uid, cpus=cpus, memory="1Gi", gpus=0))
    for number in range(WAITING):
        transaction.admit(pod(f"waiting-{number}", cpus=12, memory=f"{1024 + number}Mi", gpus=0))
    state = transaction.state()
    assert (len(state.admitted), len(state.waiting)) == (3, WAITING)
    seconds = best_cpu(lambda: Transaction(state, clock).release("last"))
    yield Figure(f"release with {WAITING:,} pods waiting", seconds, 50e-3, "all of them are decided on again")


def crowded(pods: int) -> Host:
    """Return a host of 8 NUMA nodes with this many pods, each with an exclusive CPU and memory."""
    full = host(8, Policy.BEST_EFFORT, cpus=2 * max(256, pods + 8))
    for number in range(pods):
        assert full.admit(pod(f"pod-{number}", cpus=1, memory="256Mi", gpus=int(number < 16))).admitted
    return full


def encode_pod(full: Host, uid: str) -> bytes:
    return codec.encode(HeldPodDocument(entry=pod_entry(full.ledger, uid)))


def starting() -> Iterator[Figure]:
    full = crowded(500)
    newest = list(full.ledger.pods)[-1]
    yield Figure("one pod encoded", best(lambda: encode_pod(full, newest)))
    idle = Host(full.machine, full.settings).ledger
    with TemporaryDirectory() as directory:
        with closing(StateStore(Path(directory) / "root")) as store:
            store.save(DurableState(host=full))

        def start() -> object:
            state = StateStore(Path(directory) / "root").load()
            assert state
            return restore_ledger([held.entry for held in state.pods], state.residue, idle=idle)

        assert start() == full.ledger
        yield Figure("500 pods loaded and checked", best(start), 0.5)


def history() -> Iterator[Figure]:
    """Add decisions to a full history."""
    decision = decision_document(crowded(2).decide(pod("new")))
    with TemporaryDirectory() as directory, closing(StateStore(Path(directory), max_decisions=2_000)) as store:
        for _ in range(20):
            assert not store.add_decisions([(decision, 0.0)] * 100)
        size = f"{len(codec.encode(decision))} bytes, synced"
        yield Figure("a decision in the history", best(lambda: store.add_decisions([(decision, 0.0)])), 2e-3, size)
        yield Figure("the newest 100 of the history", best(store.history.latest), 20e-3)
        store.close()
        yield Figure("a database with 2,000 decisions checked", best(store.load), 0.1)
