"""The state is restored from the database, or the problem has a remedy."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alignup.agent.recovery import ImportedState, RecoveryMode, RecoveryOptions, recover
from alignup.agent.state import AdmissionStatus, AgentState, WaitingPods
from alignup.agent.transaction import Transaction
from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import PodError
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.reason_codes import NOT_RETRIED
from alignup.store.database import NAME
from alignup.store.state_store import StateStore
from tests.agent.states import clock, empty_state, quiet_history, save_states, stored
from tests.align.hosts import GPU, host, pod
from tests.effort import examples
from tests.store.rewriting import rewrite

WAITS = RecoveryOptions(waiting=WaitingPods(max_overtakes=3, capacity=10), wait_enabled=True)
ASIDE, DROP = frozenset({RecoveryMode.SET_ASIDE}), frozenset({RecoveryMode.DROP_MISFITS})


def save_after(directory, *pods, release=()) -> AgentState:
    """The state after admitting *pods* and releasing some, saved in *directory* after each step."""
    state = empty_state(wait_enabled=True, max_overtakes=3)
    jobs = [lambda transaction, pod=pod: transaction.admit(pod) for pod in pods]
    jobs += [lambda transaction, uid=uid: transaction.release(uid) for uid in release]
    states = []
    for job in jobs:
        transaction = Transaction(state, clock())
        job(transaction)
        states.append(transaction.state())
        state = states[-1]
    save_states(directory, *states)
    return state


def recover_from(directory, on=None, *, options=WAITS, imported=None):
    return recover(StateStore(directory), on or host(), options=options, now=5.0, imported=imported)


def durable_facts(state: AgentState):
    """Everything that must survive a restart."""
    return {
        "ledger": state.host.ledger,
        "held": [(record.pod, record.since, record.source) for record in state.admitted.values()],
        "waiting": [(record.pod, record.since, record.source) for record in state.waiting],
        "overtaken": state.waiting.overtakes,
    }


def test_without_a_database_the_state_is_empty(tmp_path):
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
    assert before.waiting.uids() == ["b", "e"]
    assert recovered.state.waiting.overtakes == {"b": 2}
    assert recovered.state.idle_ledger == before.idle_ledger


def test_changes_that_may_be_lost_are_noted(tmp_path, monkeypatch):
    save_after(tmp_path, pod("a"))
    monkeypatch.setattr(StateStore, "lost_changes", lambda _store: "up to 2 changes may be lost")

    recovered = recover_from(tmp_path)

    assert recovered.notes == ("up to 2 changes may be lost",)
    assert list(recovered.state.admitted) == ["a"]


def test_a_restored_pod_keeps_its_resources(tmp_path):
    before = save_after(tmp_path, pod("a", gpu="1"))

    decision = recover_from(tmp_path).state.admitted["a"].decision

    assert decision.kept
    assert decision.placements == before.admitted["a"].decision.placements


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        pytest.param(
            {"shape": "pack:2 numa:1 core:6 pu:1"}, "the machine changed: CPUs: was 0-7, is 0-11", id="a larger machine"
        ),
        pytest.param(
            {"max_pods": 7}, "the settings changed: maximum number of pods: was 110, is 7", id="other settings"
        ),
    ],
)
def test_a_change_that_affects_no_pod_is_only_noted(tmp_path, changed, note):
    before = save_after(tmp_path, pod("a", cpu="2"))

    recovered = recover_from(tmp_path, host(**changed))

    assert recovered.problems == ()
    assert note in recovered.notes
    assert recovered.state.admitted.keys() == before.admitted.keys()


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
    before = (tmp_path / NAME).read_bytes()

    recovered = recover_from(tmp_path, host(**changed))

    assert any(message in problem.text for problem in recovered.problems)
    assert {problem.mode for problem in recovered.problems} == {RecoveryMode.DROP_MISFITS}
    assert all("restore the machine or the configuration" in problem.text for problem in recovered.problems)
    assert (tmp_path / NAME).read_bytes() == before


def test_pods_that_cannot_be_restored_are_not_listed_and_drop_misfits_releases_them(tmp_path):
    save_after(tmp_path, pod("a", cpu="2"), pod("b", cpu="4"))
    smaller = host(shape="pack:2 numa:1 core:3 pu:1")

    read_only = recover_from(tmp_path, smaller)
    recovered = recover_from(tmp_path, smaller, options=replace(WAITS, modes=DROP))

    assert len(read_only.problems) >= 1
    assert [entry.pod.uid for entry in read_only.state.pod_views()] == ["a"]
    assert recovered.problems == ()
    assert any(
        note.startswith("released because it cannot keep its resources: ") and "default/b" in note
        for note in recovered.notes
    )
    assert list(recovered.state.admitted) == ["a"]


def test_a_valid_database_is_not_set_aside_and_drop_misfits_releases_no_other_pod(tmp_path):
    before = save_after(tmp_path, pod("a", cpu="2"), pod("b", cpu="4"))

    recovered = recover_from(tmp_path, options=replace(WAITS, modes=DROP | ASIDE))

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
def test_a_damaged_database_is_an_error_unless_it_may_be_set_aside(tmp_path, harm):
    save_after(tmp_path, pod("a", cpu="2"))
    (tmp_path / NAME).write_bytes(harm((tmp_path / NAME).read_bytes()))
    damaged = (tmp_path / NAME).read_bytes()

    rejected = recover_from(tmp_path)
    untouched = (tmp_path / NAME).read_bytes() == damaged
    recovered = recover_from(tmp_path, options=replace(WAITS, modes=ASIDE))

    (problem,) = rejected.problems
    assert problem.mode is RecoveryMode.SET_ASIDE
    assert problem.text.startswith(f"{tmp_path}/{NAME}: ")
    assert problem.text.endswith(f"out of {tmp_path} to start empty: what its pods hold is then free")
    assert rejected.state.pod_views() == recovered.state.pod_views() == ()
    assert untouched
    assert recovered.problems == ()
    assert recovered.notes[0] == problem.text
    assert recovered.notes[1].startswith(f"starting without its pods; set aside: {NAME}.aside-1")
    assert (tmp_path / f"{NAME}.aside-1").read_bytes() == damaged


def test_messages_say_how_to_choose_what_may_be_lost(tmp_path):
    """Only the program knows its options."""
    (tmp_path / NAME).write_bytes(b"damaged")
    (tmp_path / NAME).chmod(0o600)
    hints = {RecoveryMode.SET_ASIDE: "say so"}

    recovered = recover_from(tmp_path)

    assert recovered.messages(WAITS) == (recovered.problems[0].text,)
    assert recovered.messages(replace(WAITS, hints=hints)) == (f"{recovered.problems[0].text}, or say so",)


def test_an_untrusted_database_cannot_be_set_aside(tmp_path):
    save_after(tmp_path, pod("a"))
    (tmp_path / NAME).chmod(0o666)

    (problem,) = recover_from(tmp_path, options=replace(WAITS, modes=ASIDE)).problems

    assert problem.mode is None
    assert "other users can write to it" in problem.text


def test_contradictory_contents_are_an_error_unless_they_may_be_set_aside(tmp_path):
    """The checksum is right, but two pods have one uid."""
    save_after(tmp_path, pod("a"), pod("b", cpu="1"))

    def change(everything):
        everything["pods"][1]["document"] = everything["pods"][0]["document"]

    rewrite(tmp_path, change)

    (problem,) = recover_from(tmp_path).problems
    recovered = recover_from(tmp_path, options=replace(WAITS, modes=ASIDE))

    assert problem.text.endswith("; start the alignup version that wrote it")
    assert problem.mode is RecoveryMode.SET_ASIDE
    assert recovered.problems == ()
    assert recovered.notes[0] == problem.text
    assert (tmp_path / f"{NAME}.aside-1").exists()


def test_a_kubelets_state_is_imported_once(tmp_path):
    there = host()
    there.admit(pod("static-pod", cpu="3"))
    ledger = there.ledger

    first = recover_from(tmp_path, imported=lambda: ImportedState(ledger))
    save_states(tmp_path, first.state)
    second = recover_from(tmp_path, imported=lambda: pytest.fail("there is a stored state"))

    assert first.state.host.ledger == ledger
    assert "there is a stored state, so the kubelet's state files are ignored" in second.notes
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
    resource = "example.com/fpga"
    plugged = Transaction(empty_state(wait_enabled=True), clock())
    plugged.set_devices(resource, [Device(resource, "fpga-0", 1, healthy=False)])
    plugged.admit(pod("a", None, **{resource: "1"}))
    plugged.plugin_stopped(resource, gone=True)
    save_states(tmp_path, plugged.state())

    (view,) = recover_from(tmp_path).state.pod_views()

    assert view.status == AdmissionStatus.WAITING
    assert view.decision.rejection.reason == f"OutOf{resource}"
    assert view.decision.placements == ()


@pytest.mark.parametrize("uid", ["a/b", "x" * 1_025, "..", "a\nb"])
def test_a_stored_pod_that_can_never_be_released_is_a_misfit(tmp_path, uid):
    before = save_after(tmp_path, pod("good", cpu="1"))
    bad, waiting = replace(pod("bad", cpu="1"), uid=uid), replace(pod("waits", cpu="4"), uid=f"{uid}/w")
    before.host.apply(before.host.decide(bad))
    records = {pod.uid: replace(before.admitted["good"], pod=pod) for pod in (bad, waiting)}
    queue = before.waiting.copy()
    queue.add(records[waiting.uid])
    state = replace(before, admitted={**before.admitted, uid: records[uid]}, waiting=queue)
    save_states(tmp_path, state)

    recovered, dropped = recover_from(tmp_path), recover_from(tmp_path, options=replace(WAITS, modes=DROP))

    (problem,) = recovered.problems
    assert "metadata.uid" in problem.text
    assert problem.mode is RecoveryMode.DROP_MISFITS
    assert dropped.problems == ()
    assert [view.pod.uid for view in dropped.state.pod_views()] == ["good"]
    assert any(note.startswith("default/waits is removed from the wait queue: ") for note in dropped.notes)


def test_an_imported_pod_that_can_never_be_released_is_a_problem(tmp_path):
    kubelet = host()
    kubelet.apply(kubelet.decide(pod("a/b")))

    recovered = recover_from(tmp_path, imported=lambda: ImportedState(kubelet.ledger))

    (problem,) = recovered.problems
    assert "metadata.uid" in problem.text
    assert recovered.state.pod_views() == ()


def test_a_restored_wait_queue_may_exceed_a_lowered_capacity(tmp_path):
    before = save_after(tmp_path, pod("a", cpu="4"), pod("b", cpu="4"), pod("c", cpu="4"))

    recovered = recover_from(tmp_path, options=replace(WAITS, waiting=WaitingPods(max_overtakes=1, capacity=1)))

    assert recovered.state.waiting.uids() == before.waiting.uids() == ["b", "c"]


def test_pods_whose_devices_moved_are_written_again(tmp_path):
    states = [empty_state()]
    for uid in ("a", "b"):
        transaction = Transaction(states[-1], clock())
        transaction.admit(pod(uid, cpu="1", gpu="1"))
        states.append(transaction.state())
    transaction = Transaction(states[-1], clock())
    transaction.set_devices(GPU, [Device(GPU, "gpu-0", nodes=2), Device(GPU, "gpu-1", nodes=1)])

    save_states(tmp_path, *states, transaction.state())

    pods = stored(tmp_path).pods
    assert [held.entry.devices["app"][GPU] for held in pods] == [{"gpu-0": "1"}, {"gpu-1": "0"}]


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("1234"), st.booleans()), max_size=14))
def test_a_restored_agent_continues_like_the_original(tmp_path_factory, jobs):
    directory = tmp_path_factory.mktemp("root")
    now = empty_state(wait_enabled=True, max_overtakes=3)
    store = StateStore(directory)
    save = quiet_history(store).save
    save(now)
    for uid, cpu, comes in jobs:
        transaction = Transaction(now, clock())
        try:
            transaction.admit(pod(uid, cpu=cpu)) if comes else transaction.release(uid)
        except PodError:
            continue
        now = transaction.state()
        save(now)
    store.close()

    again = recover_from(directory).state

    assert durable_facts(again) == durable_facts(now)
    assert again.host.decide(pod("next", gpu="1")) == now.host.decide(pod("next", gpu="1"))
