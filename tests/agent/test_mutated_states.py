"""A database with odd contents and a valid checksum is restored or rejected, never a crash or a hang."""

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

from alignup.agent import api
from alignup.agent.recovery import RecoveryMode, RecoveryOptions, RecoveryResult, recover
from alignup.agent.state import AgentState, WaitingPods
from alignup.agent.transaction import Transaction
from alignup.align.errors import AlignError, StateError
from alignup.align.settings import Policy
from alignup.documents import codec
from alignup.documents.decisions import decision_document
from alignup.store.history import History
from alignup.store.state_store import StateStore
from tests.agent.states import clock, empty_state, save_states
from tests.align.hosts import GPU, host, pod
from tests.effort import SEED, attacked, rounds
from tests.store.mutations import every_other, mutate
from tests.store.rewriting import Contents, contents, replace_contents, rewrite

HANG = 20  #: seconds
MODES = frozenset({RecoveryMode.DROP_MISFITS})


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
    for wanted in (
        pod("a", cpu="1", gpu="1"),
        pod("b", cpu="1"),
        pod("job", cpu="1"),
        pod("big", cpu="4", memory="3Gi"),
    ):
        transaction.admit(wanted)
    for number in range(2):
        transaction.admit(pod(f"w{number}", cpu="4", annotations={"note": "x"}))
    transaction.release("job")
    state = transaction.state()
    granted = replace(state.admitted["a"], grants={"app": {GPU: {"envs": {"GPU": "0"}}}})
    return replace(state, admitted={**state.admitted, "a": granted}, plugins=frozenset({"example.com/nic"}))


def save_full_state(directory: Path) -> Contents:
    save_states(directory, full_state())
    return contents(directory)


def recover_from(directory: Path) -> RecoveryResult:
    options = RecoveryOptions(waiting=WaitingPods(), wait_enabled=True, modes=MODES)
    return recover(StateStore(directory), host(Policy.BEST_EFFORT), options=options, now=5.0)


def use(state: AgentState, directory: Path) -> None:
    """Do with a restored state what an agent does: show, save and restore it, retry waiting pods, release all."""
    for view in state.pod_views():
        codec.encode(api.pod_detail_document(view))
    save_states(directory, state)
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
    """What is wrong with how the database in *directory* is restored, and the state is used; empty if nothing."""
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


def mutated(original: Contents, rng: random.Random) -> Contents:
    """Change a document, or lose or repeat a pod."""
    copy: Contents = json.loads(json.dumps(original))
    if rng.random() < 0.3:
        name = rng.choice([name for name in copy["parts"] if name != "check"])
        copy["parts"][name] = mutate(copy["parts"][name], rng)
    elif rng.random() < 0.9:
        row = rng.choice(copy["pods"])
        row["document"] = mutate(row["document"], rng)
    elif rng.random() < 0.5:
        copy["pods"].remove(rng.choice(copy["pods"]))
    else:
        copy["pods"].append({**rng.choice(copy["pods"]), "number": 99, "uid": "again"})
    return copy


@pytest.mark.soak
def test_mutated_states_are_restored_or_rejected(tmp_path):
    tries, findings, rng = rounds(80, soak=10_000), [], random.Random(SEED)
    original = save_full_state(tmp_path)
    for _ in range(tries):
        changed = mutated(original, rng)
        replace_contents(tmp_path, changed)
        if flaw := flaw_of(tmp_path):
            findings.append(f"{json.dumps(changed)[:300]}: {flaw}")
    attacked("states mutated, with a valid checksum", tries, findings)


@pytest.mark.parametrize("nodes", ["0-1000000", every_other(1 << 18)], ids=["a range", "every other"])
def test_a_million_numa_nodes_are_a_problem_and_no_hang(tmp_path, nodes):
    save_full_state(tmp_path)

    def change(everything):
        first, second = (row["document"]["entry"] for row in everything["pods"][:2])
        first["memory"]["containers"]["app"][0]["nodes"] = nodes
        second["cpus"]["containers"]["app"] = nodes

    rewrite(tmp_path, change)
    with no_hang():
        recovered = recover(StateStore(tmp_path), host(), options=RecoveryOptions(), now=0.0)

    text = "".join(problem.text for problem in recovered.problems)
    assert "memory of default/a (container app) is on NUMA nodes " in text
    assert "of default/b (container app) no longer exist on this machine" in text
    assert len(text) < 3_000


def nest(levels: int) -> bytes:
    return b'{"inner":' * levels + b"null" + b"}" * levels


@pytest.mark.parametrize("levels", [900, 100_000])
@pytest.mark.parametrize("place", ["a part", "an admitted pod", "a waiting pod", "a provider"])
def test_deeply_nested_contents_are_a_problem_and_no_crash(tmp_path, place, levels):
    save_full_state(tmp_path)

    def change(everything):
        match place:
            case "a part":
                everything["parts"]["residue"] = nest(levels)
            case "an admitted pod":
                everything["pods"][0]["document"] = b'{"entry":%s}' % nest(levels)
            case "a waiting pod":
                everything["pods"][-1]["document"] = b'{"pod":%s}' % nest(levels)
            case _:
                text = json.dumps(everything["parts"]["residue"]).encode()
                nested = text.replace(b'"providers": {', b'"providers": {"x": ' + nest(levels))
                assert nested != text
                everything["parts"]["residue"] = nested

    rewrite(tmp_path, change)

    assert flaw_of(tmp_path) == ""


def test_a_pod_that_is_admitted_and_waiting_is_a_problem(tmp_path):
    save_full_state(tmp_path)

    rewrite(tmp_path, lambda everything: everything["pods"][-1]["document"]["pod"].update(uid="a"))

    assert "two pods have the uid a" in recover_from(tmp_path).problems[0].text


def show(history: History) -> None:
    """Do what the HTTP API does with decisions."""
    for decision in history.latest():
        codec.encode(api.stored_decision_detail(decision))
        codec.encode(api.stored_decision(decision))


@pytest.mark.soak
def test_mutated_histories_are_shown_without_what_is_no_decision(tmp_path):
    tries, findings, rng = rounds(60, soak=2_000), [], random.Random(SEED)
    decision = decision_document(host().decide(pod("a", gpu="1", cpu="9")))
    with closing(StateStore(tmp_path)) as store:
        assert store.add_decisions([(decision, 1.0), (decision, 1.0)]) == ""
    history = store.history
    rejected = codec.to_builtins(decision)
    for _ in range(tries):
        text: object = json.dumps(mutate(rejected, rng))
        if rng.random() < 0.1:
            text = rng.choice((b"\xff", 5, "{", "[" * 100_000))
        time = rng.choice((1.0, 1.0, 1e300, -1e300, "noon", b"\xff"))
        with closing(sqlite3.connect(store.path)) as database, database:
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
