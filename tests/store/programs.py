"""Writers of databases that ``processes`` runs."""

import random
from itertools import count
from pathlib import Path

import msgspec

from alignup.align.workload import QoS
from alignup.documents import codec
from alignup.documents.decisions import DecidedPodDocument
from alignup.documents.ledgers import (
    CpuResidue,
    DeviceResidue,
    MemoryResidue,
    PodEntryDocument,
    ResidueDocument,
    UsageDocument,
)
from alignup.documents.pod_documents import PodDocument
from alignup.store.fingerprint import fingerprint_of
from alignup.store.history import DecisionQuery
from alignup.store.state_store import HeldPodDocument, LedgerParts, PodRow, Stage, StateChange, StateStore, StoredState
from tests.store.processes import Report, kill_writer, main

RESIDUE = ResidueDocument(CpuResidue(None, ""), MemoryResidue(None, {}), DeviceResidue(None, {}), {})
NOTHING = fingerprint_of({})


def parts(number: int = 0) -> LedgerParts:
    return LedgerParts(machine=NOTHING, settings=NOTHING, residue=RESIDUE, plugins=[str(number)])


def row(uid: str, text: str = "", *, last: bool = True) -> PodRow:
    """Return an admitted pod with some *text*."""
    pod = PodDocument(name=uid, namespace="default", uid=uid, annotations={"text": text})
    entry = PodEntryDocument(pod=pod, uses=UsageDocument(0, 0, 0, {}))
    return PodRow(uid, Stage.ADMITTED, codec.encode(HeldPodDocument(entry=entry)), last)


def numbered(number: int, *, size: int = 400) -> StateChange:
    """Return a change that leaves its number in many places, so that a mixture of two is detected.

    Pods with the last three numbers stay.
    """
    return StateChange(
        parts=parts(number),
        removed=[f"pod-{number - 3}"],
        pods=[row(f"pod-{number}", str(number) * size)],
        has_new_pods=True,
        decisions=[(decided(f"pod-{number}"), float(number))],
    )


def number_of(state: StoredState | None) -> int:
    """Return the number of the last change, after checking that all of it is there; 0 without one."""
    if state is None:
        return 0
    number = int(state.plugins[0])
    expected = [f"pod-{other}" for other in range(max(1, number - 2), number + 1)]
    assert [pod.entry.pod.uid for pod in state.pods] == expected, (number, expected)
    return number


def number_in(directory: Path) -> int:
    """Return the number of the last change in the database, whose decision is in the history too."""
    store = StateStore(directory)
    number = number_of(store.load())
    latest = store.history.latest(DecisionQuery(limit=1))
    assert [int(decision.time) for decision in latest] == ([number] if number else [])
    return number


def kill_writers(directory: str, rounds: int, seed: int) -> None:
    """Kill processes that save over and over: the state is the last one that was reported, or the next one."""
    rng = random.Random(seed)

    def write(report: Report) -> None:
        store = StateStore(Path(directory))
        for number in count(number_of(store.load()) + 1):
            assert store.save(numbered(number)) == ""
            report(number)

    for _ in range(rounds):
        last = kill_writer(write, after=rng.randrange(1, 40))
        assert number_in(Path(directory)) in (last, last + 1)


def decided(name="web", *, uid="", namespace="default", outcome="admitted", **more):
    """Return a short document in place of a decision."""
    pod = DecidedPodDocument(uid or f"uid-{name}", name, namespace, QoS.BURSTABLE)
    return msgspec.defstruct("Decided", ["pod", "outcome", *more])(pod, outcome, *more.values())


if __name__ == "__main__":
    main(globals())
