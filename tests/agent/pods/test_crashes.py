"""Agents are killed at random moments and restarted: every pod reaches its desired state and runs once."""

import json
import random
import time

import pytest

from alignup.store.checkpoint_format import NAME
from tests.agent.pods.rig import has_finished, is_running, job, owned, rig, server
from tests.deadlines import wait_for
from tests.effort import SEED, did, rounds


def write(rig_, name, uid):
    """Write a manifest, replacing the previous one."""
    document = server(uid)
    document["metadata"]["name"] = name
    (rig_.manifests / f"{name}.json").write_text(json.dumps(document))


def kill_later(agent, rng, seconds):
    """Kill an agent at a random moment within some seconds, and count that."""
    time.sleep(rng.uniform(0.0, seconds))
    agent.kill()
    did("agents killed")


def check_once(rig_, uids):
    """No container was started twice, or beside another instance of it."""
    assert rig_.twice() == []
    # A container runs a moment before it leaves its mark.
    wait_for(lambda: all(rig_.ran(uid, "app") > 0 for uid in uids))
    for uid in uids:
        marks = [file.name.removesuffix(".ran") for file in rig_.boxes.glob(f"{uid}-*.ran")]
        assert {mark: rig_.ran(*mark.rsplit("-", 1)) for mark in marks} == dict.fromkeys(marks, 1)


def check_cpus(rig_, agent):
    """Every container is on the CPUs that the ledger assigns."""
    wait_for(
        lambda: {name: [cpus] for name, cpus in owned(agent).items()} == rig_.running(),
        what=lambda: f"{owned(agent)} to be {rig_.running()}",
    )


def check_nothing_is_left(rig_, agent):
    """Release all pods; nothing of them is left."""
    for uid in agent.pods():
        assert agent.release(uid).status_code in {200, 202}
    wait_for(lambda: not agent.pods(), what=lambda: f"no pods, not {agent.pods()}")
    assert not rig_.sandboxes()
    assert rig_.left() == []


@pytest.mark.soak
def test_an_agent_killed_at_any_moment_resumes(tmp_path):
    rng = random.Random(SEED)
    running, done, gone = set[str](), set[str](), set[str]()
    number = 0
    with rig(tmp_path) as rig_:
        for _ in range(rounds(2, soak=20)):
            agent = rig_.agent()
            for _ in range(4):
                number += 1
                uid, once = f"pod-{number}", rng.random() < 0.3
                inits = rng.choice((0, 1, 2))
                length = f"sleep {rng.uniform(0, 0.3)}"
                document = job(uid, length) if once else server(uid, rng.choice((0, 0, 1)), inits)
                assert agent.http.post("/v1/pods", json=document).status_code in {201, 202}
                (done if once else running).add(uid)
            leaving = rng.sample(sorted(running), max(len(running) - 6, len(running) // 4))
            for uid in leaving:
                assert agent.release(uid).status_code in {200, 202}
                running.discard(uid)
                gone.add(uid)
            kill_later(agent, rng, 0.4)
        agent = rig_.agent()
        wait_for(lambda: all(is_running(agent.pods().get(uid)) for uid in running), what=lambda: f"{agent.pods()}")
        wait_for(lambda: all(has_finished(agent.pods().get(uid)) for uid in done), what=lambda: f"{agent.pods()}")
        wait_for(lambda: not gone & agent.pods().keys(), what=lambda: f"{agent.pods()}")

        check_once(rig_, running | done)
        check_cpus(rig_, agent)
        wait_for(lambda: set(rig_.sandboxes()) == running, what=lambda: f"{rig_.sandboxes()} to be {running}")
        check_nothing_is_left(rig_, agent)
        agent.stop()


@pytest.mark.soak
def test_the_next_agent_follows_manifest_changes_while_the_runtime_stalls(tmp_path):
    rng = random.Random(SEED)
    with rig(tmp_path) as rig_:
        wanted: dict[str, str] = {}
        for number in range(rounds(2, soak=20)):
            agent = rig_.agent()
            for name in rng.sample(["one", "two", "three"], 2):
                if name in wanted and rng.random() < 0.4:
                    (rig_.manifests / f"{name}.json").unlink()
                    del wanted[name]
                else:
                    wanted[name] = f"{name}-{number}"  # another pod, which replaces the previous one
                    write(rig_, name, wanted[name])
            time.sleep(rng.uniform(0.0, 0.5))
            rig_.stall()
            agent.pods()  # does not wait for the runtime: requests to that would take longer than the client waits
            time.sleep(rng.uniform(0.0, 0.1))
            rig_.resume()
            kill_later(agent, rng, 0.1)
        agent = rig_.agent()
        wait_for(lambda: {*agent.pods()} == {*wanted.values()}, what=lambda: f"{agent.pods()} to be {wanted}")
        wait_for(lambda: all(map(is_running, agent.pods().values())), what=lambda: f"{agent.pods()}")

        check_once(rig_, wanted.values())
        check_cpus(rig_, agent)
        wait_for(
            lambda: rig_.sandboxes() == dict.fromkeys(wanted.values(), 1),
            what=lambda: f"{rig_.sandboxes()} to be one of each of {wanted.values()}",
        )
        left = sorted([*wanted.values(), *(f"default_{name}_{uid}" for name, uid in wanted.items())])
        wait_for(lambda: rig_.left() == left, what=lambda: f"{rig_.left()} to be {left}")
        agent.stop()


def test_a_job_that_ends_while_the_disk_is_full_does_not_run_again(tmp_path):
    with rig(tmp_path) as rig_:
        agent = rig_.agent()
        for number in range(8):
            assert agent.http.post("/v1/pods", json=server(f"web-{number}")).status_code == 201
        until_end = "until test -e end; do sleep 0.02; done"
        assert agent.http.post("/v1/pods", json=job("once", until_end)).status_code == 201
        wait_for(lambda: rig_.ran("once", "app") == 1)
        wait_for(lambda: all(map(is_running, agent.pods().values())), what=lambda: f"{agent.pods()}")
        agent.kill()
        agent = rig_.agent()  # writes a checkpoint with all pods
        wait_for(agent.ready)
        agent.kill()
        agent.log_file.unlink()  # it would exceed the limit, too
        agent = rig_.agent(largest=(rig_.root / NAME).stat().st_size - 1_000)
        rejected = agent.release("web-0")
        (rig_.boxes / "end").touch()
        wait_for(lambda: agent.pods()["once"]["run"]["phase"] == "Succeeded", what=lambda: f"{agent.pods()['once']}")
        held = agent.pods()["once"]["status"]
        agent.kill()
        agent = rig_.agent()
        wait_for(lambda: has_finished(agent.pods()["once"]), what=lambda: f"{agent.pods()['once']}")

        assert rejected.status_code == 503
        assert held == "admitted"
        check_once(rig_, ["once", *(f"web-{number}" for number in range(8))])
        check_nothing_is_left(rig_, agent)
        agent.stop()
