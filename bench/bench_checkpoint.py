"""The cost of durability: an admission with its checkpoint on disk, and a start from a checkpoint."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, time

from alignup.agent.checkpointer import Checkpointer
from alignup.agent.state import AgentState, Clock
from alignup.agent.transaction import Transaction
from alignup.align.host import Host
from alignup.align.settings import Policy
from alignup.documents import codec
from alignup.store.documents import Fingerprint, HeldPodDocument
from alignup.documents.decisions import decision_document
from alignup.documents.ledgers.documents import pod_entry, residue
from alignup.documents.ledgers.restore import restore_ledger
from alignup.store.checkpoint import CheckpointStore
from alignup.store.checkpoint_format import Checkpoint
from alignup.store.fingerprint import machine_fingerprint, settings_fingerprint
from alignup.store.history import History
from bench.bench_admit import host, pod
from bench.harness import Figure, best, best_cpu

MANY, WAITING = 5_000, 1_000
MEMORY = Path("/dev/shm")  # noqa: S108 - shows the cost without a disk


def figures() -> Iterator[Figure]:
    """Budgets: 4 ms for a checkpoint of 200 pods, 2 s for a start with 500; 5,000 pods cost at most 1.3 times none."""
    yield from appending()
    yield from releasing()
    yield from saving()
    yield from starting()
    yield from history()


class Agent:
    """The part of an agent that matters here: a host, and the encoded documents of its pods."""

    def __init__(self, pods: int, directory: Path) -> None:
        self.host = crowded(pods)
        self.store = CheckpointStore(directory)
        self.fingerprints: tuple[Fingerprint, Fingerprint] = (
            machine_fingerprint(self.host.machine),
            settings_fingerprint(self.host.settings),
        )
        self.encoded = {uid: encode_pod(self.host, uid) for uid in self.host.ledger.pods}

    def save(self) -> None:
        machine, settings = self.fingerprints
        pods = list(self.encoded.values())
        self.store.save(Checkpoint(machine=machine, settings=settings, residue=residue(self.host.ledger), pods=pods))

    def admit(self, uid: str) -> None:
        """Admit one pod durably, and release it; the next checkpoint stores the release."""
        assert self.host.admit(pod(uid, cpus=1, memory="256Mi", gpus=0)).admitted
        self.encoded[uid] = encode_pod(self.host, uid)
        self.save()
        self.host.release(uid)
        del self.encoded[uid]


def encode_pod(host: Host, uid: str) -> bytes:
    return codec.encode(HeldPodDocument(entry=pod_entry(host.ledger, uid)))


def crowded(pods: int) -> Host:
    """Return a host of 8 NUMA nodes with this many pods, each with an exclusive CPU and memory."""
    one = host(8, Policy.BEST_EFFORT, cpus=2 * max(256, pods + 8))
    for number in range(pods):
        assert one.admit(pod(f"pod-{number}", cpus=1, memory="256Mi", gpus=int(number < 16))).admitted
    return one


def appending() -> Iterator[Figure]:
    """Admit a pod in the agent, without its HTTP server: decide, append to the journal, sync. Then release it."""
    places = {"on disk": None, "without a disk": MEMORY}  # a slow disk would hide what grows with the pods
    for where, place in places.items():
        if place is not None and not place.is_dir():
            continue
        with TemporaryDirectory(dir=place) as directory:
            few, many = (Resident(pods, Path(directory) / f"{pods}") for pods in (0, MANY))
            rounds = [(usual(few.admit_and_release), usual(many.admit_and_release)) for _ in range(5)]
            alone = min(one for one, _ in rounds) / 2
            crowded = min(other for _, other in rounds) / 2
            note = "" if place else f"one fdatasync of 4 KiB here: {fdatasync_seconds(Path(directory)) * 1e3:.2f} ms"
            yield Figure(f"change with 0 pods held, in the journal, {where}, median", alone, None, note)
            ratio = f"{crowded / alone:.2f} times that of 0 pods"
            yield Figure(f"change with {MANY:,} pods held, {where}, median", crowded, 1.3 * alone, ratio)


def releasing() -> Iterator[Figure]:
    """Release a pod while 1,000 pods wait that all request something else, and none fits."""
    clock = Clock(now=time, monotonic=perf_counter)
    one = host(2, Policy.SINGLE_NUMA_NODE, cpus=256)
    transaction = Transaction(AgentState(host=one, idle_ledger=one.ledger, wait_enabled=True), clock)
    for uid, cpus in {"most": 120, "other": 118, "last": 4}.items():
        transaction.admit(pod(uid, cpus=cpus, memory="1Gi", gpus=0))
    for number in range(WAITING):
        transaction.admit(pod(f"waiting-{number}", cpus=12, memory=f"{1024 + number}Mi", gpus=0))
    state = transaction.state()
    assert (len(state.admitted), len(state.waiting.pods)) == (3, WAITING)
    seconds = best_cpu(lambda: Transaction(state, clock).release("last"))
    yield Figure(f"release with {WAITING:,} pods waiting", seconds, 50e-3, "all of them are decided on again")


class Resident:
    """The part of an agent that decides and saves, with many small pods."""

    def __init__(self, pods: int, directory: Path) -> None:
        one = host(2, Policy.BEST_EFFORT, cpus=256)
        self.state = AgentState(host=one, idle_ledger=one.ledger)
        self.clock = Clock(now=time, monotonic=perf_counter)
        transaction = Transaction(self.state, self.clock)
        for number in range(pods):
            transaction.admit(pod(f"pod-{number}", cpus=0.01, memory="1Mi", gpus=0))
        self.state = transaction.state()
        assert len(self.state.admitted) == pods
        self.save = Checkpointer(CheckpointStore(directory), one)
        self.save(self.state)
        self.numbers = count()

    def run(self, job: Callable[[Transaction], object]) -> None:
        transaction = Transaction(self.state, self.clock)
        job(transaction)
        state = transaction.state()
        self.save(state)
        self.state = replace(state, unsaved=frozenset())

    def admit_and_release(self) -> None:
        uid = f"new-{next(self.numbers)}"
        self.run(lambda transaction: transaction.admit(pod(uid, cpus=1, memory="256Mi", gpus=0)))
        self.run(lambda transaction: transaction.release(uid))


def fdatasync_seconds(directory: Path) -> float:
    with (directory / "floor").open("wb", buffering=0) as file:

        def append() -> None:
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())

        return usual(append)


def saving() -> Iterator[Figure]:
    with TemporaryDirectory() as directory:
        agent = Agent(200, Path(directory) / "root")
        numbers = count()
        newest = list(agent.host.ledger.pods)[-1]
        yield Figure("one pod encoded", best(lambda: encode_pod(agent.host, newest)))
        if MEMORY.is_dir():
            with TemporaryDirectory(dir=MEMORY) as memory:
                agent.store = CheckpointStore(Path(memory) / "root")
                size = f"{sum(map(len, agent.encoded.values())) >> 10} KiB"
                yield Figure("checkpoint of 200 pods, without a disk", best(agent.save), 1e-3, size)
        agent.store = CheckpointStore(Path(directory) / "root")
        yield Figure("checkpoint of 200 pods, on disk, median", usual(agent.save), 3.5e-3)
        admitted = usual(lambda: agent.admit(f"new-{next(numbers)}"))
        yield Figure("admission with 200 pods held, on disk, median", admitted, 4e-3)


def starting() -> Iterator[Figure]:
    with TemporaryDirectory() as directory:
        agent = Agent(500, Path(directory) / "root")
        agent.save()
        idle = Host(agent.host.machine, agent.host.settings).ledger

        def start() -> object:
            loaded = CheckpointStore(Path(directory) / "root").load()
            assert loaded
            entries = [one.entry for one in loaded.document.pods]
            return restore_ledger(entries, loaded.document.residue, idle=idle)

        assert start() == agent.host.ledger
        yield Figure("500 pods loaded and checked", best(start), 0.5)


def history() -> Iterator[Figure]:
    """Add decisions to a full history."""
    decision = decision_document(crowded(2).decide(pod("new")))
    with TemporaryDirectory() as directory:
        made = History(Path(directory), rows=2_000)
        for _ in range(2_000):
            made.add(decision, time=0.0)
        size = f"{len(codec.encode(decision))} bytes"
        yield Figure("a decision in the history", best(lambda: made.add(decision, time=0.0)), 0.5e-3, size)
        yield Figure("the newest 100 of the history", best(made.latest), 20e-3)
        made.close()

        def look() -> None:
            assert not made.open()
            made.close()

        yield Figure("a history of 2,000 opened", best(look), 0.1)


def usual(action: Callable[[], object], *, times: int = 101) -> float:
    """Return the median duration of *action*: the speed of a disk varies."""
    spent = []
    for _ in range(times):
        start = perf_counter()
        action()
        spent.append(perf_counter() - start)
    return median(spent)
