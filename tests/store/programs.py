"""Writers of databases that ``processes`` runs."""

import random
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import msgspec

from alignup.align.host import Host
from alignup.align.ledger import AdmittedPod
from alignup.align.workload import Pod, QoS
from alignup.align.workload.demand import FitRequest
from alignup.documents.decisions import DecidedPodDocument
from alignup.machines.synthetic import parse
from alignup.store.history import DecisionQuery
from alignup.store.state_store import DurablePod, DurableState, SaveResult, StateStore, StoredState
from tests.store.processes import Report, kill_writer, main

_NOTHING: dict[str, int] = {}
_NO_TEXTS: dict[str, str] = {}
IDLE = Host(parse("pack:1 numa:1 core:1 pu:1"))


@cache
def durable_pod(uid: str, text: str = "") -> DurablePod:
    """Return a pod with some *text*; the same object each time, as long as it does not change."""
    pod = Pod(name=uid, namespace="default", uid=uid, annotations={"text": text})
    return DurablePod(pod=pod, since=1.5, source="api")


@cache
def admitted(uid: str, text: str) -> AdmittedPod:
    return AdmittedPod(durable_pod(uid, text).pod, {}, FitRequest(0, 0, 0, {}))


@cache
def plugins(number: int) -> frozenset[str]:
    return frozenset({str(number)})


def state(*uids: str, number: int = 0, waiting: str = "", texts: Mapping[str, str] = _NO_TEXTS) -> DurableState:
    """Return a state with these pods, in order; *texts* of some of them, and letters as waiting pods."""
    host = copy(IDLE)
    pods = {uid: admitted(uid, texts.get(uid, "")) for uid in uids}
    host.ledger = replace(IDLE.ledger, pods=pods)
    return DurableState(
        host=host,
        admitted={uid: durable_pod(uid, texts.get(uid, "")) for uid in uids},
        waiting=tuple(durable_pod(uid) for uid in waiting),
        overtaken=_NOTHING,
        plugins=plugins(number),
    )


def save_numbered(store: StateStore, number: int, *, size: int = 400) -> SaveResult:
    """Save a change that leaves its number in many places, so that a mixture of two is detected.

    Pods with the last three numbers stay.
    """
    texts = {f"pod-{other}": str(other) * size for other in range(max(1, number - 2), number + 1)}
    return store.save(state(*texts, number=number, texts=texts), [(decided(f"pod-{number}"), float(number))])


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
            assert save_numbered(store, number).history_problem == ""
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
