"""Faults that an agent must survive; ``e2e/test_agent_faults.py`` has those of real disks and plugin processes."""

import os
import shutil
import time
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.agent.recovery import RecoveryOptions, recover
from alignup.agent.state import Clock, WaitingPods
from alignup.agent.transaction import Transaction
from alignup.documents.decisions import decision_document
from alignup.store.database import NAME
from alignup.store.state_store import StateStore
from tests.agent.agents import CONFIG, pod, run_until_exit, running
from tests.agent.load import PODS_PER_KILL, come_and_go, kill_again_and_again, memory_of, nonsense
from tests.agent.states import clock, empty_state, save_states, stored
from tests.align.hosts import host
from tests.align.hosts import pod as small_pod
from tests.deadlines import wait_for
from tests.effort import SEED, did, examples, rounds

ROOMY = {**CONFIG, "maxPods": 1000}
LARGEST = 2 << 20  #: bytes of a file on a full disk
LARGE = {"note": "x" * 20_000}  #: annotations of a pod


@pytest.mark.soak
def test_an_agent_killed_under_load_keeps_every_acknowledged_decision(tmp_path):
    kills = rounds(3, soak=200)

    assert kill_again_and_again(tmp_path / "root", kills=kills, seed=SEED) >= kills * PODS_PER_KILL


def large_pod(uid):
    small = pod(uid, cpu="1m", memory="1Mi")
    return {**small, "metadata": {**small["metadata"], "annotations": LARGE}}


def test_a_full_disk_stops_only_admissions(tmp_path):
    promised = {}
    with running(tmp_path / "root", config=ROOMY, largest=LARGEST) as agent:
        for number in range(200):
            answer = agent.http.post("/v1/pods", json=large_pod(f"pod-{number}"))
            if answer.status_code != 201:
                break
            promised[f"pod-{number}"] = answer.json()["decision"]["placements"]
        shown = agent.pods()
        released = agent.release("pod-0")
        wait_for(agent.ready)
        again = agent.http.post("/v1/pods", json=large_pod("pod-0"))
        agent.kill()
    with running(tmp_path / "root", config=ROOMY) as agent:
        after = agent.pods()

    assert answer.status_code == 503
    assert "the disk is writable and not full" in answer.json()["detail"]
    assert len(promised) > 20
    assert shown.keys() == promised.keys()
    assert (released.status_code, again.status_code) == (200, 201)
    assert {uid: shown["placements"] for uid, shown in after.items()} == promised


def remove_log(root):
    (root / f"{NAME}-wal").unlink()


def cut_log(root, *, pages):
    os.truncate(root / f"{NAME}-wal", 32 + pages * (24 + 4096))


def restore_backup(root):
    root.with_name("backup").rename(root / NAME)
    remove_log(root)


@pytest.mark.parametrize(
    "damage",
    [remove_log, partial(cut_log, pages=0), partial(cut_log, pages=2), partial(cut_log, pages=20), restore_backup],
)
def test_an_agent_that_lost_acknowledged_changes_is_read_only_until_that_is_accepted(tmp_path, damage):
    root = tmp_path / "root"
    with running(root) as agent:
        shutil.copy(root / NAME, tmp_path / "backup")
        for number in range(5):
            assert agent.admit(f"pod-{number}", cpu="1").status_code == 201
            assert agent.release(f"pod-{number}").status_code == 200
        assert agent.admit("last", cpu="1").status_code == 201
        acknowledged = agent.pods()
        agent.kill()
    (tmp_path / "backup").chmod(0o600)
    damage(root)

    with running(root) as agent:
        answer, shown = agent.http.get("/readyz"), agent.pods()
        if answer.status_code == 200:  # the agent had moved the log into the database
            assert shown == acknowledged
            return
        refused = agent.admit("new", cpu="1")
        agent.kill()
    code, exported = run_until_exit(root, "--export", tmp_path / "kubelet")
    with running(root, "--recover", "accept-loss") as agent:
        accepted, rest, log = agent.ready(), agent.pods(), agent.log()
        agent.kill()
    with running(root) as agent:
        again = agent.ready()

    assert (answer.status_code, refused.status_code, code) == (503, 503, 1)
    for said in (answer.json()["errors"][0]["message"], exported):
        assert "it lacks " in said
        assert "start with --recover accept-loss to do so" in said
    assert (accepted, again) == (True, True)
    assert rest != acknowledged
    assert any("it lacks " in line.get("detail", "") for line in log)


def test_the_agent_recovers_when_the_disk_is_writable_again(tmp_path):
    root, away = tmp_path / "root", tmp_path / "away"
    with running(root) as agent:
        agent.admit("before", cpu="1")
        root.rename(away)
        root.mkdir()
        (away / "agent.sock").rename(root / "agent.sock")
        (root / NAME).mkdir()  # in the way of root, too
        root.chmod(0o500)
        rejected, ready, shown = agent.admit("during", cpu="1"), agent.http.get("/readyz"), agent.pods()
        root.chmod(0o700)
        (root / NAME).rmdir()
        (root / "agent.sock").rename(away / "agent.sock")
        root.rmdir()
        away.rename(root)
        admitted, ready_again = agent.admit("after", cpu="1"), agent.ready()

    assert (rejected.status_code, ready.status_code) == (503, 503)
    assert list(shown) == ["before"]
    assert (admitted.status_code, ready_again) == (201, True)
    assert [held.entry.pod.uid for held in stored(root).pods] == ["before", "after"]


@pytest.mark.soak
def test_malformed_requests_do_no_harm(tmp_path):
    count = rounds(80, soak=5_000)
    with running(tmp_path / "root") as agent:
        nonsense(agent, 10, seed=SEED)
        before = memory_of(agent)

        nonsense(agent, count, seed=SEED + 1)
        did("malformed requests", count)

        assert agent.ready()
        assert agent.admit("sense", cpu="1").status_code == 201
        assert memory_of(agent) - before < 10 << 20


@pytest.mark.soak
def test_admitting_and_releasing_pods_leaks_nothing(tmp_path):
    count = rounds(40, soak=5_000)
    with running(tmp_path / "root", "--history", "50") as agent:
        come_and_go(agent, 60)
        before, size = memory_of(agent), (agent.root / NAME).stat().st_size

        come_and_go(agent, count)
        did("pods admitted and released", count)

        assert memory_of(agent) - before < 4 << 20
        assert (agent.root / NAME).stat().st_size == size
        assert len(agent.get("/v1/decisions?limit=1000")["decisions"]) == 50


def test_a_client_that_disconnects_early_does_no_harm(tmp_path):
    with running(tmp_path / "root") as agent:
        for number in range(20):
            with agent.http.stream("POST", "/v1/pods", json=pod(f"left-{number}", cpu="100m", memory="1Mi")):
                pass

        wait_for(lambda: len(agent.pods()) == 20)
        assert agent.ready()


@settings(max_examples=examples(30))
@given(st.data())
def test_every_flipped_bit_and_every_truncation_is_detected_or_changes_nothing(tmp_path_factory, data):
    """Free pages may have any contents."""
    directory = tmp_path_factory.mktemp("root")
    transaction = Transaction(empty_state(), clock())
    transaction.admit(small_pod("a", gpu="1"))
    save_states(directory, transaction.state())
    whole = (directory / NAME).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:place] + bytes([whole[place] ^ 1 << data.draw(st.integers(0, 7))]) + whole[place + 1 :]
    (directory / NAME).write_bytes(data.draw(st.sampled_from((flipped, whole[:place]))))

    recovered = recover(StateStore(directory), host(), options=RecoveryOptions(waiting=WaitingPods()), now=0.0)

    uids = [view.pod.uid for view in recovered.state.pod_views()]
    assert uids == ([] if recovered.problems else ["a"])
    if not recovered.problems:
        assert recovered.state.host.ledger == transaction.state().host.ledger


@settings(max_examples=examples(20))
@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=8))
def test_a_clock_that_jumps_does_not_change_the_order(tmp_path_factory, times):
    directory = tmp_path_factory.mktemp("root")
    jumping = iter(times * 50)
    clocked = Clock(now=lambda: next(jumping), monotonic=time.perf_counter)
    now = empty_state(wait_enabled=True)
    store = StateStore(directory)
    for number in range(5):
        transaction = Transaction(now, clocked)
        transaction.admit(small_pod(f"p{number}", cpu="4"))
        for event in transaction.events:
            assert event.decision is not None
            assert store.add_decisions([(decision_document(event.decision), event.time)]) == ""
        now = transaction.state()
    store.close()
    save_states(directory, now)

    again = recover(store, host(), options=RecoveryOptions(waiting=WaitingPods(), wait_enabled=True), now=0.0).state

    assert [entry.pod.uid for entry in again.pod_views()] == ["p0", "p1", "p2", "p3", "p4"]
    assert [record.since for record in again.all_records()] == [record.since for record in now.all_records()]
    decisions = store.history.latest()
    assert [decision.document["pod"]["uid"] for decision in decisions] == ["p4", "p3", "p2", "p1", "p0"]
