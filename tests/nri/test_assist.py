"""Assist mode beside a kubelet: shared containers get a part of the pool, and nothing is taken from exclusive ones."""

import asyncio
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from alignup.align import bits
from alignup.kubernetes.kubelet_files.state_files import CPU_FILE
from alignup.web.metrics import metrics_lines
from alignup.wire import nri_pb2 as wire
from tests.align.test_shared_pool import machine
from tests.nri.kubelet_node import GIB, STATIC_MEMORY, KubeletNode
from tests.short_paths import short_directory


@contextmanager
def node(nodes: int = 2, **options):
    with short_directory() as directory:
        yield KubeletNode.started(directory, machine(nodes), **options)


@pytest.fixture
def two_nodes():
    with node() as started:
        yield started


def test_new_shared_containers_get_the_cpus_of_one_numa_node(two_nodes):
    for uid, milli in (("a", 2000), ("b", 1000), ("c", 0)):
        two_nodes.create(uid, milli=milli)

    assert two_nodes.shown() == {"a-app": "0-3", "b-app": "4-7", "c-app": "4-7"}


def test_all_containers_of_a_pod_are_together(two_nodes):
    two_nodes.create("a", "one", milli=1000)
    two_nodes.create("b", "other", milli=1500)
    two_nodes.create("a", "two", milli=1000)

    assert two_nodes.shown() == {"a-one": "0-3", "a-two": "0-3", "b-other": "4-7"}


def test_a_pod_that_outgrows_its_node_gets_more_with_all_its_containers(two_nodes):
    two_nodes.create("a", "one", milli=3000)
    two_nodes.create("a", "two", milli=3000)

    assert two_nodes.shown() == {"a-one": "0-7", "a-two": "0-7"}


def test_exclusive_containers_are_left_alone_and_shared_ones_make_way_in_the_same_answer(two_nodes):
    two_nodes.create("a", milli=2000)
    two_nodes.create("b", milli=2000)
    assert two_nodes.admit("exclusive", 3)
    two_nodes.create("exclusive", milli=3000)

    assert two_nodes.shown() == {"a-app": "4-7", "b-app": "4-7", "exclusive-app": "1-3"}
    two_nodes.reconcile()
    assert two_nodes.shown() == {"a-app": "4-7", "b-app": "4-7", "exclusive-app": "1-3"}
    assert two_nodes.sent == 0


def test_an_older_state_that_the_kubelet_sends_is_narrowed_and_settled_later(two_nodes):
    two_nodes.create("a", milli=1000)
    two_nodes.update("a-app", cpus="2-7")
    assert two_nodes.shown() == {"a-app": "2-3"}
    two_nodes.update("a-app", cpus="4-7")
    assert two_nodes.shown() == {"a-app": "4-7"}
    two_nodes.check_pool()
    assert two_nodes.shown() == {"a-app": "0-3"}


def test_a_resize_changes_the_nodes_and_an_empty_set_is_no_change(two_nodes):
    two_nodes.create("a", milli=1000)
    two_nodes.update("a-app", milli=1500)
    assert two_nodes.shown() == {"a-app": "0-3"}
    two_nodes.update("a-app", milli=6000)
    assert two_nodes.shown() == {"a-app": "0-7"}
    two_nodes.update("a-app", milli=500)
    assert two_nodes.shown() == {"a-app": "0-3"}


def test_containers_follow_the_pool_when_it_changes_and_nothing_is_sent_when_it_does_not(two_nodes):
    for uid in "abcd":
        two_nodes.create(uid, milli=1000)
    two_nodes.admit("exclusive", 4)
    two_nodes.check_pool()
    assert two_nodes.shown() == dict.fromkeys(("a-app", "b-app", "c-app", "d-app"), "0-3")
    two_nodes.end("exclusive")
    two_nodes.check_pool()
    assert sorted(two_nodes.shown().values()) == ["0-3", "0-3", "4-7", "4-7"]
    sent = two_nodes.sent
    two_nodes.check_pool()
    assert two_nodes.sent == sent == 4


@pytest.mark.parametrize("version", ["", "v0.12.0", "(devel)"])
def test_an_older_runtime_gets_changes_with_events_only_since_other_updates_can_block_it(two_nodes, version):
    two_nodes.nri = version
    two_nodes.restart_plugin()
    for uid in "ab":
        two_nodes.create(uid, milli=1000)
    two_nodes.admit("exclusive", 4)
    two_nodes.check_pool()
    assert two_nodes.shown() == {"a-app": "0-3", "b-app": "4-7"}
    two_nodes.reconcile()
    assert two_nodes.shown() == {"a-app": "0-3", "b-app": "0-3"}
    two_nodes.end("exclusive")
    two_nodes.reconcile()
    assert sorted(two_nodes.shown().values()) == ["0-3", "4-7"]
    assert two_nodes.sent == 0


def test_a_container_that_was_exclusive_is_left_alone_even_without_its_entry(two_nodes):
    two_nodes.admit("exclusive", 2)
    two_nodes.create("exclusive", milli=2000)
    two_nodes.end("exclusive")
    two_nodes.check_pool()

    assert two_nodes.shown() == {"exclusive-app": "1-2"}


def test_stopped_containers_free_their_node(two_nodes):
    for uid, milli in (("a", 3000), ("b", 3000), ("c", 2000)):
        two_nodes.create(uid, milli=milli)
    assert two_nodes.shown()["c-app"] == "0-7"
    two_nodes.stop("a-app")

    assert two_nodes.shown() == {"b-app": "4-7", "c-app": "0-3"}


def test_a_pod_that_restarts_comes_back_to_its_node(two_nodes):
    two_nodes.create("a", milli=1000)
    two_nodes.create("b", milli=1000)
    two_nodes.stop("b-app")
    two_nodes.stop("a-app")
    two_nodes.create("b", milli=1000)

    assert two_nodes.shown() == {"b-app": "4-7"}


def test_a_pod_with_a_new_sandbox_stays_on_its_node_when_the_old_one_is_removed(two_nodes):
    two_nodes.create("a", milli=1000)
    two_nodes.create("b", milli=1000)
    two_nodes.stop("a-app")
    asyncio.run(two_nodes.plugin.remove_pod_sandbox(wire.PodSandbox(id="old", uid="b")))
    two_nodes.reconcile()

    assert two_nodes.shown() == {"b-app": "4-7"}


def test_a_new_process_changes_nothing_that_is_right(two_nodes):
    for uid, milli in (("a", 100), ("b", 2000), ("c", 2100), ("d", 0)):
        two_nodes.create(uid, milli=milli)
    before = two_nodes.shown()
    two_nodes.restart_plugin()

    assert two_nodes.shown() == before
    assert set(before.values()) == {"0-3", "4-7"}


def test_a_new_process_takes_up_containers_that_no_plugin_has_seen(two_nodes):
    for uid in "ab":
        two_nodes.create(uid, milli=1000)
        two_nodes.containers[f"{uid}-app"].cpus = "0-7"
    two_nodes.restart_plugin()

    assert sorted(two_nodes.shown().values()) == ["0-3", "4-7"]


def test_pods_that_are_removed_while_the_runtime_is_not_connected_are_forgotten(two_nodes):
    two_nodes.create("a", milli=1000)
    two_nodes.create("b", milli=1000)
    pods = [two_nodes.containers["b-app"].pod]
    asyncio.run(two_nodes.plugin.synchronize(pods, [two_nodes.containers["b-app"].container]))

    assert set(two_nodes.plugin._shares) == {"b"}  # noqa: SLF001


def test_memory_nodes_match_where_limits_fit(two_nodes):
    two_nodes.create("a", milli=2000, memory=10 * GIB)
    two_nodes.create("b", milli=2000)
    assert [run.mems for run in two_nodes.containers.values()] == ["0", ""]
    two_nodes.update("a-app", memory=20 * GIB)
    assert two_nodes.containers["a-app"].mems == "0-1"


def test_cpus_follow_memory_that_the_kubelet_reserved():
    with node(**STATIC_MEMORY) as started:
        started.admit("ended", "500m", "10Gi")
        started.admit("a", "500m", "10Gi")
        started.end("ended")
        started.create("a", milli=500, memory=10 * GIB)
        started.create("b", milli=3000, memory=10 * GIB)

        assert started.shown() == {"a-app": "4-7", "b-app": "0-3"}
        assert [run.mems for run in started.containers.values()] == ["", "0"]


def test_without_a_static_policy_all_cpus_are_shared():
    with node(cpuManagerPolicy="none") as started:
        started.create("a", milli=1000)
        started.create("wide", milli=5000)
        assert started.shown() == {"a-app": "0-3", "wide-app": ""}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"policyName":"static","defaultCpuSet":"0-"}', None])
def test_without_a_readable_state_file_everything_stays_as_it_is(two_nodes, damage):
    two_nodes.create("a", milli=1000)
    path = two_nodes.directory / CPU_FILE
    good = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    two_nodes.create("b", milli=1000)
    two_nodes.check_pool()
    assert two_nodes.shown() == {"a-app": "0-3", "b-app": "0-7"}
    assert CPU_FILE in two_nodes.plugin.problem
    path.write_bytes(good)
    two_nodes.check_pool()
    assert two_nodes.shown() == {"a-app": "0-3", "b-app": "4-7"}
    assert two_nodes.plugin.problem == ""


def test_a_container_that_is_being_created_gets_its_part_as_soon_as_it_can_be_updated(two_nodes):
    asyncio.run(two_nodes.begin("a", milli=1000))
    asyncio.run(two_nodes.begin("b", milli=1000))
    two_nodes.admit("exclusive", 4)
    two_nodes.create("exclusive", milli=4000)
    assert two_nodes.shown()["b-app"] == "4-7"  # the runtime has skipped it
    two_nodes.check_pool()
    assert two_nodes.shown()["b-app"] == "4-7"
    two_nodes.finish("a-app")
    assert not two_nodes.plugin.wake.is_set()
    two_nodes.finish("b-app")
    assert two_nodes.plugin.wake.is_set()
    two_nodes.check_pool()
    assert two_nodes.shown() == {"a-app": "0-3", "b-app": "0-3", "exclusive-app": "4-7"}


def test_an_update_that_is_overtaken_by_an_event_is_corrected(two_nodes):
    two_nodes.create("a", milli=500)
    two_nodes.create("b", milli=500)
    two_nodes.admit("first", 1)

    async def meanwhile():
        two_nodes.admit("second", 2)
        await two_nodes.begin("second", milli=2000)

    two_nodes.meanwhile = meanwhile
    two_nodes.check_pool()
    assert two_nodes.shown() == {"a-app": "0", "b-app": "4-7", "second-app": "2-3"}


def test_what_was_changed_in_an_answer_is_confirmed_once(two_nodes):
    for uid in "ab":
        two_nodes.create(uid, milli=1000)
    two_nodes.admit("exclusive", 4)
    two_nodes.create("exclusive", milli=4000)
    for _ in range(2):
        two_nodes.check_pool()
        assert two_nodes.sent == 1


def test_an_update_that_fails_is_tried_again(two_nodes):
    two_nodes.create("a", milli=1000)
    two_nodes.create("b", milli=1000)
    two_nodes.failing.add("b-app")
    two_nodes.admit("exclusive", 4)
    two_nodes.check_pool()
    assert two_nodes.shown()["b-app"] == "4-7"
    two_nodes.failing.clear()
    two_nodes.synchronized = False
    two_nodes.check_pool()
    assert two_nodes.shown()["b-app"] == "4-7"
    two_nodes.synchronized = True
    two_nodes.check_pool()
    assert two_nodes.shown()["b-app"] == "0-3"
    text = "".join(metrics_lines(two_nodes.plugin._metrics.registry))  # noqa: SLF001
    assert 'alignup_nri_updates_total{result="error"} 2' in text
    assert 'alignup_nri_updates_total{result="ok"} 1' in text
    assert 'alignup_nri_pool_cpus{numa_node="0"} 4' in text
    assert 'alignup_nri_shared_pods{numa_nodes="1"} 2' in text


def test_a_failure_is_logged_once_and_a_success_is_not(two_nodes):
    two_nodes.create("a", milli=1000)
    two_nodes.create("b", milli=1000)
    two_nodes.failing.add("b-app")
    two_nodes.admit("exclusive", 4)
    with capture_logs() as logs:
        two_nodes.check_pool()
        two_nodes.check_pool()
        two_nodes.failing.clear()
        two_nodes.check_pool()

    assert two_nodes.shown()["b-app"] == "0-3"
    assert [(log["event"], log["containers"]) for log in logs] == [("updates of containers failed", ["b-app"])]


actions = st.one_of(
    st.tuples(st.just("shared"), st.integers(0, 5000), st.sampled_from([0, GIB, 40 * GIB])),
    st.tuples(st.just("exclusive"), st.integers(1, 6), st.just(0)),
    st.tuples(st.sampled_from(["stop", "resize"]), st.integers(0, 20), st.integers(1, 8000)),
    st.tuples(st.sampled_from(["reconcile", "restart", "check"]), st.just(0), st.just(0)),
)


def act(started: KubeletNode, number: int, action: str, first: int, second: int) -> None:
    """Do something that happens on a node; the plugin looks at the pool only by chance."""
    running = sorted(started.containers)
    match action:
        case "shared":
            started.create(f"pod-{number}", milli=first, memory=second)
        case "exclusive":
            if started.admit(f"pod-{number}", first):
                started.create(f"pod-{number}", milli=first * 1000)
        case "stop" if running:
            id_ = running[first % len(running)]
            uid = started.containers[id_].pod.uid
            started.stop(id_)
            if uid in started.exclusive:
                started.end(uid)
        case "resize" if running:
            started.update(running[first % len(running)], milli=second)
        case "reconcile":
            started.reconcile()
        case "restart":
            started.restart_plugin()
        case "check":
            started.check_pool()


@settings(max_examples=40)
@given(st.integers(1, 4), st.lists(actions, max_size=12))
def test_whatever_happens_no_shared_container_has_a_cpu_that_was_given_away_or_none(nodes, happening):
    with node(nodes) as started:
        for number, (action, first, second) in enumerate(happening):
            act(started, number, action, first, second)
            exclusive = {uid: held["app"] for uid, held in started.exclusive.items()}
            for run in started.containers.values():
                cpus = bits.parse(run.cpus)
                assert cpus
                if run.pod.uid in exclusive:
                    assert cpus == exclusive[run.pod.uid]
                else:
                    assert cpus & bits.union(exclusive.values()) == 0
        started.check_pool()
        sent = started.sent
        started.check_pool()
        assert started.sent == sent
