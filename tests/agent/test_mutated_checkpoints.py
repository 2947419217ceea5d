"""A checkpoint or history with odd contents and a valid checksum is restored or rejected, never a crash or a hang."""

import json
import random
import signal
import sqlite3
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.agent.checkpointer import Checkpointer
from alignup.agent.recovery import RecoveryMode, RecoveryOptions, RecoveryResult, recover
from alignup.agent.state import AgentState
from alignup.agent.transaction import Transaction
from alignup.agent.wait_queue import WaitQueue
from alignup.align.errors import AlignError, StateError
from alignup.align.settings import Policy
from alignup.documents import codec
from alignup.documents.decisions import decision_document
from alignup.store.checkpoint import CheckpointStore
from alignup.store.checkpoint_format import NAME
from alignup.store.history import History
from alignup.web import responses
from tests.agent.states import clock, empty_state
from tests.align.hosts import GPU, host, pod
from tests.effort import SEED, attacked, rounds
from tests.store.mutations import every_other, mutate
from tests.store.rewriting import contents, rewrite, with_checksum

HANG = 20  #: seconds
VERSION_1 = Path(__file__).parents[1] / "documents" / "version1" / NAME


class HangError(BaseException):
    pass


@contextmanager
def no_hang() -> Iterator[None]:
    """Interrupt what takes long."""

    def interrupt(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(HANG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def full_state() -> AgentState:
    """Pods of every kind: with devices, with grants, and waiting."""
    transaction = Transaction(empty_state(wait_enabled=True, max_overtakes=3), clock())
    for one in (pod("a", cpu="1", gpu="1"), pod("b", cpu="1"), pod("job", cpu="1"), pod("big", cpu="4", memory="3Gi")):
        transaction.admit(one)
    for number in range(2):
        transaction.admit(pod(f"w{number}", cpu="4", annotations={"note": "x"}))
    transaction.release("job")
    state = transaction.state()
    granted = replace(state.admitted["a"], grants={"app": {GPU: {"envs": {"GPU": "0"}}}})
    return replace(state, admitted={**state.admitted, "a": granted}, plugins=frozenset({"example.com/nic"}))


def checkpoints(directory: Path) -> list[bytes]:
    """One of this version, and one of version 1."""
    state = full_state()
    Checkpointer(CheckpointStore(directory), state.host)(state)
    return [(directory / NAME).read_bytes(), VERSION_1.read_bytes()]


def recover_from(directory: Path) -> RecoveryResult:
    options = RecoveryOptions(
        waiting=WaitQueue(), wait_enabled=True, modes=frozenset({RecoveryMode.DROP_MISFITS, RecoveryMode.PREVIOUS})
    )
    return recover(CheckpointStore(directory), host(Policy.BEST_EFFORT), options=options, now=5.0)


def use(state: AgentState, directory: Path) -> None:
    """Do with a restored state what an agent does: show, save and restore it, retry waiting pods, release all."""
    for view in state.pod_views():
        codec.encode(responses.pod_detail_document(view))
    Checkpointer(CheckpointStore(directory), state.host)(state)
    again = recover_from(directory)
    assert again.problems == (), again.problems
    assert [(view.pod, view.status) for view in again.state.pod_views()] == [
        (view.pod, view.status) for view in state.pod_views()
    ]
    transaction = Transaction(state, clock())
    transaction.retry_waiting()
    for view in transaction.state().pod_views():
        transaction.release(view.pod.uid)
    assert transaction.state().pod_views() == ()


def flaw_of(directory: Path) -> str:
    """What is wrong with how the checkpoint in *directory* is restored, and the state is used; empty if nothing."""
    try:
        with no_hang():
            recovered = recover_from(directory)
            if not recovered.problems:
                use(recovered.state, directory)
    except HangError:
        return "it hangs\n" + traceback.format_exc(limit=-8)
    except Exception as error:  # noqa: BLE001 - any is a finding
        return f"{type(error).__name__}: {str(error)[:300]}\n" + traceback.format_exc(limit=-6)[-1500:]
    return ""


@pytest.mark.soak
def test_mutated_checkpoints_are_restored_or_rejected(tmp_path):
    tries, findings, rng = rounds(80, soak=10_000), [], random.Random(SEED)
    originals = checkpoints(tmp_path)
    for _ in range(tries):
        for path in tmp_path.iterdir():
            path.unlink()
        original = rng.choice(originals)
        document = mutate(json.loads(b"{" + original.partition(b"\n")[2]), rng)
        (tmp_path / NAME).write_bytes(with_checksum(json.dumps(document)[1:].encode()))
        (tmp_path / NAME).chmod(0o600)
        if flaw := flaw_of(tmp_path):
            findings.append(f"{json.dumps(document)[:300]}: {flaw}")
    attacked("checkpoints mutated, with a valid checksum", tries, findings)


@pytest.mark.parametrize("nodes", ["0-1000000", every_other(1 << 18)], ids=["a range", "every other"])
def test_a_million_numa_nodes_are_a_problem_and_no_hang(tmp_path, nodes):
    checkpoints(tmp_path)

    def change(document):
        document["pods"][0]["entry"]["memory"]["containers"]["app"][0]["nodes"] = nodes
        document["pods"][1]["entry"]["cpus"]["containers"]["app"] = nodes

    rewrite(tmp_path / NAME, change)
    with no_hang():
        recovered = recover(CheckpointStore(tmp_path), host(), options=RecoveryOptions(), now=0.0)

    text = "".join(recovered.problems)
    assert "memory of default/a (container app) is on NUMA nodes " in text
    assert "of default/b (container app) no longer exist on this machine" in text
    assert len(text) < 3_000


def nest(levels: int) -> bytes:
    return b'{"inner":' * levels + b"null" + b"}" * levels


@pytest.mark.parametrize("levels", [900, 100_000])
@pytest.mark.parametrize("key", [b'"waiting":[', b'"pods":[', b'"providers":{"x":'])
def test_deeply_nested_contents_are_a_problem_and_no_crash(tmp_path, key, levels):
    for original in checkpoints(tmp_path):
        body = original.partition(b"\n")[2].replace(key, key + nest(levels) + b",", 1)
        (tmp_path / NAME).write_bytes(with_checksum(body))
        (tmp_path / NAME).chmod(0o600)

        assert flaw_of(tmp_path) == ""


def test_a_pod_that_is_admitted_and_waiting_is_a_problem(tmp_path):
    checkpoints(tmp_path)

    rewrite(tmp_path / NAME, lambda document: document["waiting"][0]["pod"].update(uid="a"))

    assert contents(tmp_path / NAME)["waiting"][0]["pod"]["uid"] == "a"
    assert "two pods have the uid a" in recover_from(tmp_path).problems[0]


def show(history: History) -> None:
    """Do what the HTTP API does with decisions."""
    for one in history.latest():
        codec.encode(responses.stored_decision_detail(one))
        responses.encode_stored_decision(one)


@pytest.mark.soak
def test_mutated_histories_are_shown_without_what_is_no_decision(tmp_path):
    tries, findings, rng = rounds(60, soak=2_000), [], random.Random(SEED)
    history = History(tmp_path)
    decision = decision_document(host().decide(pod("a", gpu="1", cpu="9")))
    for _ in range(2):
        history.add(decision, time=1.0)
    history.close()
    rejected = codec.to_builtins(decision)
    for _ in range(tries):
        text: object = json.dumps(mutate(rejected, rng))
        if rng.random() < 0.1:
            text = rng.choice((b"\xff", 5, "{", "[" * 100_000))
        time = rng.choice((1.0, 1.0, 1e300, -1e300, "noon", b"\xff"))
        with closing(sqlite3.connect(history.path)) as database, database:
            database.execute("UPDATE decisions SET time = ?, document = ? WHERE id = 2", (time, text))
        try:
            with no_hang():
                show(history)
                assert history.latest()[-1].id == 1
        except (StateError, AlignError, HangError) as error:
            findings.append(f"{type(error).__name__}: {error} for {str(text)[:300]}")
        except Exception as error:  # noqa: BLE001 - any is a finding
            findings.append(f"{type(error).__name__}: {str(error)[:200]}\n{traceback.format_exc(limit=-5)[-1500:]}")
    attacked("histories mutated", tries, findings)
