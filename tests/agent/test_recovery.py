"""The state is restored from the checkpoint, or the problem has a remedy."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alignup.agent.checkpointer import Checkpointer
from alignup.agent.pending_admission import NOT_RETRIED
from alignup.agent.recovery import ImportedState, RecoveryMode, RecoveryOptions, recover
from alignup.agent.state import AgentState
from alignup.agent.transaction import Transaction
from alignup.agent.wait_queue import WaitQueue
from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import PodError
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy
from alignup.documents.api import AdmissionStatus
from alignup.store.checkpoint import CheckpointStore
from alignup.store.checkpoint_format import NAME
from tests.agent.states import clock, empty_state
from tests.align.hosts import GPU, host, pod
from tests.effort import examples
from tests.store.rewriting import rewrite

WAITS = RecoveryOptions(waiting=WaitQueue(max_overtakes=3, capacity=10), wait_enabled=True)
PREVIOUS, DROP = frozenset({RecoveryMode.PREVIOUS}), frozenset({RecoveryMode.DROP_MISFITS})


def save_after(directory, *pods, release=()) -> AgentState:
    """The state after admitting *pods* and releasing some, saved in *directory* after each step."""
    now = empty_state(wait_enabled=True, max_overtakes=3)
    checkpointer = Checkpointer(CheckpointStore(directory), now.host)
    jobs = [lambda transaction, one=one: transaction.admit(one) for one in pods]
    jobs += [lambda transaction, uid=uid: transaction.release(uid) for uid in release]
    for job in jobs:
        transaction = Transaction(now, clock())
        job(transaction)
        now = transaction.state()
        checkpointer(now)
    return now


def recover_from(directory, one=None, *, options=WAITS, imported=None):
    return recover(CheckpointStore(directory), one or host(), options=options, now=5.0, imported=imported)


def durable_facts(one: AgentState):
    """Everything that must survive a restart."""
    return {
        "ledger": one.host.ledger,
        "held": [(known.pod, known.since, known.source) for known in one.admitted.values()],
        "line": [(known.pod, known.since, known.source) for known in one.waiting.pods.values()],
        "overtaken": one.waiting.overtakes,
    }


def test_a_checkpoint_of_release_0_1_is_recovered(tmp_path):
    old = Path(__file__).parents[1] / "documents" / "version1" / NAME
    (tmp_path / NAME).write_bytes(old.read_bytes())
    (tmp_path / NAME).chmod(0o600)

    recovered = recover_from(tmp_path, host(Policy.BEST_EFFORT))

    state = recovered.state
    assert recovered.problems == ()
    assert recovered.notes == ("the checkpoint has version 1; the next one will have version 3",)
    assert list(state.admitted) == ["trainer", "big", "small"]
    assert state.waiting.overtakes == {"next": 1}
    assert state.plugins == {GPU}


def test_without_a_checkpoint_the_state_is_empty(tmp_path):
    recovered = recover_from(tmp_path / "root")

    assert recovered.problems == recovered.notes == ()
    assert recovered.state.pod_views() == ()


def test_recovery_restores_everything(tmp_path):
    before = save_after(
        tmp_path, pod("a", cpu="4"), pod("b", cpu="4"), pod("c", cpu="1"), pod("d", cpu="2"), pod("e", cpu="3")
    )

    recovered = recover_from(tmp_path)

    assert recovered.problems == recovered.notes == ()
    assert durable_facts(recovered.state) == durable_facts(before)
    assert list(before.waiting.pods) == ["b", "e"]
    assert recovered.state.waiting.overtakes == {"b": 2}
    assert recovered.state.idle_ledger == before.idle_ledger


def test_a_restored_pod_keeps_its_resources(tmp_path):
    before = save_after(tmp_path, pod("a", gpu="1"))

    decision = recover_from(tmp_path).state.admitted["a"].decision

    assert decision.kept
    assert decision.placements == before.admitted["a"].decision.placements


def test_a_changed_machine_that_fits_all_pods_is_only_noted(tmp_path):
    before = save_after(tmp_path, pod("a", cpu="2"))
    larger = host(shape="pack:2 numa:1 core:6 pu:1")

    recovered = recover_from(tmp_path, larger)

    assert recovered.problems == ()
    assert any("the machine changed: CPUs: was 0-7, is 0-11" in note for note in recovered.notes)
    assert recovered.state.admitted.keys() == before.admitted.keys()


def test_changed_settings_that_affect_no_pod_are_noted(tmp_path):
    save_after(tmp_path, pod("a", cpu="2"))

    recovered = recover_from(tmp_path, host(max_pods=7))

    assert recovered.problems == ()
    assert "the settings changed: maximum number of pods: was 110, is 7" in recovered.notes


NO_CPUS = {"cpus": CpuSettings(policy="none", reservation=Quantity.parse("1"))}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"shape": "pack:2 numa:1 core:3 pu:1"}, "no longer exist on this machine", id="CPUs are gone"),
        pytest.param({"shape": "pack:1 numa:1 core:8 pu:1"}, "NUMA node 1", id="a node is gone"),
        pytest.param(NO_CPUS, "does not allocate exclusive CPUs now", id="another policy for CPUs"),
        pytest.param({"memory": False}, "does not allocate memory now", id="another policy for memory"),
    ],
)
def test_a_pod_that_cannot_be_restored_makes_the_agent_read_only(tmp_path, changed, message):
    save_after(tmp_path, pod("a", cpu="3"), pod("b", cpu="4"))
    stored = (tmp_path / NAME).read_bytes()

    recovered = recover_from(tmp_path, host(**changed))

    assert any(message in problem for problem in recovered.problems)
    assert all("--recover drop-misfits" in problem for problem in recovered.problems)
    assert (tmp_path / NAME).read_bytes() == stored


def test_restorable_pods_are_listed_while_the_agent_is_read_only(tmp_path):
    save_after(tmp_path, pod("a", cpu="2"), pod("b", cpu="4"))

    recovered = recover_from(tmp_path, host(shape="pack:2 numa:1 core:3 pu:1"))

    assert len(recovered.problems) >= 1
    assert [entry.pod.uid for entry in recovered.state.pod_views()] == ["a"]


def test_drop_misfits_releases_pods_that_cannot_be_restored(tmp_path):
    save_after(tmp_path, pod("a", cpu="2"), pod("b", cpu="4"))

    recovered = recover_from(tmp_path, host(shape="pack:2 numa:1 core:3 pu:1"), options=replace(WAITS, modes=DROP))

    assert recovered.problems == ()
    assert any(
        note.startswith("released because it cannot keep its resources: ") and "default/b" in note
        for note in recovered.notes
    )
    assert list(recovered.state.admitted) == ["a"]


def test_drop_misfits_releases_no_other_pod(tmp_path):
    before = save_after(tmp_path, pod("a", cpu="2"), pod("b", cpu="4"))

    recovered = recover_from(tmp_path, options=replace(WAITS, modes=DROP | PREVIOUS))

    assert durable_facts(recovered.state) == durable_facts(before)


def test_pods_keep_devices_whose_plugin_has_not_reconnected(tmp_path):
    save_after(tmp_path, pod("a", gpu="1"))
    bare = host()
    bare = Host(replace(bare.machine, devices=()), bare.settings)

    recovered = recover_from(tmp_path, bare)

    assert recovered.problems == ()
    assert recovered.state.admitted["a"].decision.placements[0].as_text()["device"][GPU] == "gpu-0"


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="cut short"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data.replace(b'"cpu":"2"', b'"cpu":"3"'), id="changed"),
        pytest.param(lambda data: bytes([data[0] ^ 1]) + data[1:], id="a bit flipped"),
    ],
)
def test_a_damaged_checkpoint_is_an_error_unless_the_previous_one_may_be_used(tmp_path, harm):
    before = save_after(tmp_path, pod("a", cpu="2"))
    kept_twice = Checkpointer(CheckpointStore(tmp_path), before.host)
    kept_twice(before)
    (tmp_path / NAME).write_bytes(harm((tmp_path / NAME).read_bytes()))
    damaged = (tmp_path / NAME).read_bytes()

    rejected = recover_from(tmp_path)
    recovered = recover_from(tmp_path, options=replace(WAITS, modes=PREVIOUS))

    assert "--recover previous" in rejected.problems[0]
    assert rejected.state.pod_views() == ()
    assert (tmp_path / NAME).read_bytes() == damaged
    assert durable_facts(recovered.state) == durable_facts(before)
    assert any("using the previous checkpoint" in note for note in recovered.notes)


def test_the_advice_is_right_if_the_previous_checkpoint_is_of_no_use_either(tmp_path):
    save_after(tmp_path, pod("a"))
    (tmp_path / NAME).write_bytes(b"damaged")

    alone = recover_from(tmp_path, options=replace(WAITS, modes=PREVIOUS))
    (tmp_path / f"{NAME}.previous").write_bytes(b"damaged")
    (tmp_path / f"{NAME}.previous").chmod(0o600)
    both = recover_from(tmp_path, options=replace(WAITS, modes=PREVIOUS))
    (tmp_path / NAME).unlink()
    only_previous = recover_from(tmp_path, options=replace(WAITS, modes=PREVIOUS))

    advice = f"move it out of {tmp_path} to start empty: what its pods hold is then free"
    for recovered, where in ((alone, NAME), (both, NAME), (only_previous, f"{NAME}.previous")):
        (problem,) = recovered.problems
        assert problem.startswith(f"{tmp_path}/{where}: ")
        assert problem.endswith(advice)
        assert "--recover" not in problem


def test_a_contradictory_checkpoint_is_left_for_the_previous_one(tmp_path):
    """Its checksum is right, but two pods have one uid."""
    before = save_after(tmp_path, pod("a"), pod("b", cpu="1"))
    Checkpointer(CheckpointStore(tmp_path), before.host)(before)
    rewrite(tmp_path / NAME, lambda document: document["pods"].append(document["pods"][0]))

    (problem,) = recover_from(tmp_path).problems
    recovered = recover_from(tmp_path, options=replace(WAITS, modes=PREVIOUS))

    assert "start with --recover previous to fall back to the previous one" in problem
    assert recovered.problems == ()
    assert list(recovered.state.admitted) == ["a", "b"]
    assert recovered.notes[0] == problem


def test_a_valid_checkpoint_takes_precedence_over_the_previous_one(tmp_path):
    before = save_after(tmp_path, pod("a", cpu="2"), pod("b", cpu="2"))

    recovered = recover_from(tmp_path, options=replace(WAITS, modes=PREVIOUS))

    assert durable_facts(recovered.state) == durable_facts(before)


def test_a_checkpoint_of_a_later_version_is_an_error(tmp_path):
    save_after(tmp_path, pod("a"))
    text = (tmp_path / NAME).read_bytes()
    head, body = text.split(b",\n", 1)
    import hashlib  # noqa: PLC0415 - only here

    later = body.replace(b'"version":3', b'"version":99')
    (tmp_path / NAME).write_bytes(b'{"sha256":"%s",\n%s' % (hashlib.sha256(later).hexdigest().encode(), later))

    assert head.startswith(b'{"sha256"')
    assert "version 99" in recover_from(tmp_path).problems[0]


def test_a_kubelets_state_is_imported_once(tmp_path):
    there = host()
    there.admit(pod("static-pod", cpu="3"))
    ledger = there.ledger

    first = recover_from(tmp_path, imported=lambda: ImportedState(ledger))
    Checkpointer(CheckpointStore(tmp_path), first.state.host)(first.state)
    second = recover_from(tmp_path, imported=lambda: pytest.fail("there is a checkpoint"))

    assert first.state.host.ledger == ledger
    assert "there is a checkpoint, so the kubelet's state files are ignored" in second.notes
    assert durable_facts(second.state) == durable_facts(first.state)


def test_a_waiting_pod_that_is_invalid_under_new_settings_is_removed(tmp_path):
    choosy = replace(pod("b", cpu="4"), annotations={"topology.alignup.dev/policy": "strictest"})
    save_after(tmp_path, pod("a", cpu="4"), choosy)

    recovered = recover_from(tmp_path, host(pod_policy_annotations=True))

    assert recovered.problems == ()
    assert any(note.startswith("default/b is removed from the wait queue: ") for note in recovered.notes)
    assert [entry.pod.uid for entry in recovered.state.pod_views()] == ["a"]


def test_a_restored_waiting_pod_holds_nothing_and_has_a_reason(tmp_path):
    save_after(tmp_path, pod("a", cpu="4"), pod("b", cpu="3"), pod("c", cpu="4"), pod("d", cpu="4"))

    waiting = recover_from(tmp_path, host(shape="pack:4 numa:1 core:4 pu:1")).state.pod_views()[2:]

    assert [view.decision.rejection.reason for view in waiting] == [NOT_RETRIED, NOT_RETRIED]
    assert [view.decision.placements for view in waiting] == [(), ()]


def test_a_restored_pod_that_waits_for_a_plugin_says_so(tmp_path):
    own = "example.com/fpga"
    plugged = Transaction(empty_state(wait_enabled=True), clock())
    plugged.set_devices(own, [Device(own, "fpga-0", 1, healthy=False)])
    plugged.admit(pod("a", None, **{own: "1"}))
    plugged.plugin_stopped(own, gone=True)
    Checkpointer(CheckpointStore(tmp_path), host())(plugged.state())

    (view,) = recover_from(tmp_path).state.pod_views()

    assert view.status == AdmissionStatus.WAITING
    assert view.decision.rejection.reason == f"OutOf{own}"
    assert view.decision.placements == ()


@pytest.mark.parametrize("uid", ["a/b", "x" * 1_025, "..", "a\nb"])
def test_a_checkpointed_pod_that_can_never_be_released_is_a_misfit(tmp_path, uid):
    before = save_after(tmp_path, pod("good", cpu="1"))
    bad, waiting = replace(pod("bad", cpu="1"), uid=uid), replace(pod("waits", cpu="4"), uid=f"{uid}/w")
    before.host.apply(before.host.decide(bad))
    records = {one.uid: replace(before.admitted["good"], pod=one) for one in (bad, waiting)}
    state = replace(
        before,
        admitted={**before.admitted, uid: records[uid]},
        waiting=replace(before.waiting, pods={waiting.uid: records[waiting.uid]}),
    )
    Checkpointer(CheckpointStore(tmp_path), host())(state)

    recovered, dropped = recover_from(tmp_path), recover_from(tmp_path, options=replace(WAITS, modes=DROP))

    (problem,) = recovered.problems
    assert "metadata.uid" in problem
    assert "--recover drop-misfits" in problem
    assert dropped.problems == ()
    assert [view.pod.uid for view in dropped.state.pod_views()] == ["good"]
    assert any(note.startswith("default/waits is removed from the wait queue: ") for note in dropped.notes)


def test_an_imported_pod_that_can_never_be_released_is_a_problem(tmp_path):
    kubelet = host()
    kubelet.apply(kubelet.decide(pod("a/b")))

    recovered = recover_from(tmp_path, imported=lambda: ImportedState(kubelet.ledger))

    (problem,) = recovered.problems
    assert "metadata.uid" in problem
    assert recovered.state.pod_views() == ()


def test_a_restored_wait_queue_may_exceed_a_lowered_capacity(tmp_path):
    before = save_after(tmp_path, pod("a", cpu="4"), pod("b", cpu="4"), pod("c", cpu="4"))

    recovered = recover_from(tmp_path, options=replace(WAITS, waiting=WaitQueue(max_overtakes=1, capacity=1)))

    assert list(recovered.state.waiting.pods) == list(before.waiting.pods) == ["b", "c"]


def test_only_new_pods_are_encoded_but_all_are_saved(tmp_path):
    now = empty_state()
    checkpointer = Checkpointer(CheckpointStore(tmp_path), now.host)
    for uid in ("a", "b"):
        transaction = Transaction(now, clock())
        transaction.admit(pod(uid, cpu="1", gpu="1"))
        now = transaction.state()
        checkpointer(now)
    transaction = Transaction(now, clock())
    transaction.set_devices(GPU, [Device(GPU, "gpu-0", nodes=2), Device(GPU, "gpu-1", nodes=1)])

    checkpointer(transaction.state())

    stored = json.loads((tmp_path / NAME).read_bytes())["pods"]
    assert [one["entry"]["devices"]["app"][GPU] for one in stored] == [{"gpu-0": "1"}, {"gpu-1": "0"}]


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("1234"), st.booleans()), max_size=14))
def test_a_restored_agent_continues_like_the_original(tmp_path_factory, jobs):
    directory = tmp_path_factory.mktemp("root")
    now = empty_state(wait_enabled=True, max_overtakes=3)
    checkpointer = Checkpointer(CheckpointStore(directory), now.host)
    checkpointer(now)
    for uid, cpu, comes in jobs:
        transaction = Transaction(now, clock())
        try:
            transaction.admit(pod(uid, cpu=cpu)) if comes else transaction.release(uid)
        except PodError:
            continue
        now = transaction.state()
        checkpointer(now)

    again = recover_from(directory).state

    assert durable_facts(again) == durable_facts(now)
    assert again.host.decide(pod("next", gpu="1")) == now.host.decide(pod("next", gpu="1"))
