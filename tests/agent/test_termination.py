"""Terminating pods keep their resources; finished pods release them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.agent.api import AdmissionStatus
from alignup.agent.checkpointer import Checkpointer
from alignup.agent.pod_record import same_workload
from alignup.agent.recovery import RecoveryOptions, recover
from alignup.agent.state import EventKind
from alignup.agent.transaction import Transaction
from alignup.align import bits
from alignup.documents import codec
from alignup.documents.checkpoints import TerminationRequest, upgrade_version_1
from alignup.documents.run_status import ContainerRunStatus, PodRunStatus
from alignup.kubernetes.podspec import PodManifest
from alignup.store.checkpoint import CheckpointStore
from tests.agent.states import clock, empty_state
from tests.agent.test_state import FILE, admits, after, not_none
from tests.align.hosts import host, pod
from tests.soundness import check_sound

DONE = PodRunStatus(
    phase="Succeeded", containers=(ContainerRunStatus(name="app", kind="app", state="ended", exit_code=0),)
)


def runnable(uid, *, image="a", label="x", **requests):
    manifest = {"metadata": {"name": uid, "labels": {"l": label}}, "spec": {"containers": [{"image": image}]}}
    return replace(pod(uid, **requests), manifest=PodManifest(json.dumps(manifest)))


def ends(uid, grace=None):
    return lambda transaction: transaction.terminate(uid, grace=grace)


def finishes(uid, run=DONE):
    return lambda transaction: transaction.finish(uid, run)


def test_a_terminating_pod_keeps_its_resources():
    before = after(empty_state(), admits("a", cpu="2"))
    transaction = Transaction(before, clock())

    entry = not_none(transaction.terminate("a"))

    now = transaction.state()
    assert entry.status is AdmissionStatus.ADMITTED
    assert now.admitted["a"].termination == TerminationRequest(1000.0, None)
    assert now.host.ledger == before.host.ledger
    assert transaction.durable
    assert [event.kind for event in transaction.events] == [EventKind.TERMINATING]


@pytest.mark.parametrize(
    ("first", "then", "grace"),
    [
        pytest.param(None, 5.0, 5.0, id="later sooner"),
        pytest.param(5.0, None, 5.0, id="later with the pod's grace period"),
        pytest.param(5.0, 60.0, 5.0, id="later with more time"),
        pytest.param(60.0, 5.0, 5.0, id="later with less time"),
    ],
)
def test_of_two_termination_requests_the_sooner_counts(first, then, grace):
    now = after(empty_state(), admits("a"), ends("a", first), ends("a", then))

    assert not_none(now.admitted["a"].termination).grace == grace


def test_terminating_a_waiting_pod_releases_it():
    now = after(empty_state(wait_enabled=True), admits("a", cpu="4"), admits("b", cpu="4"), ends("b"))

    assert now.pod_view("b") is None


def test_an_unknown_pod_cannot_be_terminated():
    assert Transaction(empty_state(), clock()).terminate("a") is None


def test_a_finished_pod_releases_its_resources_and_stays_known():
    now = after(empty_state(wait_enabled=True), admits("a", cpu="4"), admits("b", cpu="4"), finishes("a"))

    assert not_none(now.pod_view("b")).status is AdmissionStatus.ADMITTED
    entry = not_none(now.pod_view("a"))
    assert (entry.status, entry.run) == (AdmissionStatus.FINISHED, DONE)
    assert now.host.ledger.pods.keys() == {"b"}
    check_sound(now.host, "after a pod has finished")


def test_a_finished_pod_that_is_submitted_again_does_not_run_again():
    now = after(empty_state(), admits("a", source=FILE), finishes("a"), admits("a", source=FILE))

    assert now.admitted == {}
    assert not_none(now.pod_view("a")).status is AdmissionStatus.FINISHED


def test_releasing_a_finished_pod_removes_it():
    now = after(empty_state(), admits("a"), finishes("a"), ends("a"))

    assert not_none(now.finished["a"].termination)
    assert after(now, lambda transaction: transaction.release("a")).pod_views() == ()


def test_the_number_of_finished_pods_from_the_api_is_limited():
    jobs = [job for uid in "abc" for job in (admits(uid), finishes(uid))]

    now = after(replace(empty_state(), max_finished=2), admits("kept", source=FILE), finishes("kept"), *jobs)

    assert list(now.finished) == ["kept", "b", "c"]


def test_terminating_and_finished_pods_survive_a_crash(tmp_path):
    now = after(
        empty_state(),
        lambda transaction: transaction.admit(runnable("a")),
        lambda transaction: transaction.admit(runnable("b"), source=FILE),
        lambda transaction: transaction.admit(runnable("c")),
        ends("a", 7.0),
        finishes("b"),
    )
    Checkpointer(CheckpointStore(tmp_path), now.host)(now)

    found = recover(CheckpointStore(tmp_path), host(), options=RecoveryOptions(), now=9.0)

    assert found.problems == found.notes == ()
    again = found.state
    assert again.admitted["a"].termination == now.admitted["a"].termination
    assert again.admitted["c"].termination is None
    assert [one.pod.manifest for one in again.admitted.values()] == [one.pod.manifest for one in now.admitted.values()]
    assert again.finished["b"].run == DONE
    assert again.finished["b"].source == FILE
    assert again.finished["b"].pod.manifest == runnable("b").manifest


@pytest.mark.parametrize(
    ("newer", "is_same"),
    [
        pytest.param(runnable("a"), True, id="as it was"),
        pytest.param(runnable("a", label="y"), True, id="with another label"),
        pytest.param(runnable("a", image="b"), False, id="with another image"),
        pytest.param(runnable("a", cpu="3"), False, id="with more CPUs"),
        pytest.param(pod("a"), True, id="without a manifest"),
    ],
)
def test_pods_are_equal_if_they_request_and_run_the_same(newer, is_same):
    assert same_workload(newer, runnable("a")) is is_same


containers: st.SearchStrategy[ContainerRunStatus] = st.deferred(
    lambda: st.builds(
        ContainerRunStatus,
        cpus=st.sets(st.integers(0, 300)).map(bits.of).map(bits.show),
        nodes=st.sets(st.integers(0, 40)).map(bits.of).map(bits.show),
        last=st.none() | containers,
    )
)


@given(st.builds(PodRunStatus, containers=st.lists(containers, max_size=3).map(tuple)))
def test_the_status_of_a_finished_pod_survives_encoding(run):
    assert codec.decode(codec.encode(run), PodRunStatus) == run


def test_a_finished_pod_in_a_version_1_checkpoint_is_upgraded():
    container = {"name": "app", "kind": "app", "state": "ended", "ready": False, "restarts": 1, "image": "a", "id": "c"}
    container |= {"pid": None, "cpus": "0-1", "nodes": "", "started": 0.0, "ended": 1.5, "exit_code": 3}
    container |= {"reason": "Error", "message": ""}
    run = {"phase": "Failed", "reason": "", "message": "", "ending": False, "ips": ["10.0.0.1"], "warnings": []}
    run["containers"] = [{**container, "last": {**container, "last": None}}]
    old = {"format": "", "serial": 1, "machine": {}, "settings": {"facts": {}}, "pods": [], "waiting": []}
    old["crumbs"] = {"cpus": {}, "memory": {"reusable": {}, "spread": {}}, "devices": {}, "others": {}}
    old["extra"] = {"finished": [{"run": run}, {"run": None}]}

    first, damaged = upgrade_version_1(old)["finished"]

    status = codec.convert(first["run"], PodRunStatus)
    (found,) = status.containers
    assert (status.phase, status.ips) == ("Failed", ("10.0.0.1",))
    assert (found.cpus, found.exit_code) == ("0-1", 3)
    assert (found.started, found.ended) == ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.500Z")
    assert found.last is not None
    assert found.last.exit_code == 3
    assert damaged == {"run": None}
