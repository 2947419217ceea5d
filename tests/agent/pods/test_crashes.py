"""Agents are killed at random moments and restarted: every pod reaches its desired state and runs once."""

import json
import os
import random
import time

from alignup.state.checkpoint import NAME
from tests.agent.agents import wait_for
from tests.agent.pods.rig import has_finished, is_running, job, owned, rig, server


def write(rig_, name, uid):
    """Write a manifest, replacing the previous one."""
    document = server(uid)
    document["metadata"]["name"] = name
    (rig_.manifests / f"{name}.json").write_text(json.dumps(document))


def check_once(rig_, uids):
    """No container was started twice, or beside another instance of it."""
    assert rig_.twice() == []
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


def test_an_agent_killed_at_any_moment_resumes(tmp_path):
    rng = random.Random(os.getpid())
    running, done, gone = set[str](), set[str](), set[str]()
    number = 0
    with rig(tmp_path) as rig_:
        for _ in range(4):
            agent = rig_.agent()
            for _ in range(4):
                number += 1
                uid, once = f"pod-{number}", rng.random() < 0.3
                inits = rng.choice((0, 1, 2))
                document = job(uid, rng.uniform(0, 0.5)) if once else server(uid, rng.choice((0, 0, 1)), inits)
                assert agent.http.post("/v1/pods", json=document).status_code in {201, 202}
                (done if once else running).add(uid)
            for uid in rng.sample(sorted(running), len(running) // 4):
                assert agent.release(uid).status_code in {200, 202}
                running.discard(uid)
                gone.add(uid)
            time.sleep(rng.uniform(0.0, 0.7))
            agent.kill()
        agent = rig_.agent()
        wait_for(lambda: all(is_running(agent.pods().get(uid)) for uid in running), what=lambda: f"{agent.pods()}")
        wait_for(lambda: all(has_finished(agent.pods().get(uid)) for uid in done), what=lambda: f"{agent.pods()}")
        wait_for(lambda: not gone & agent.pods().keys(), what=lambda: f"{agent.pods()}")

        check_once(rig_, running | done)
        check_cpus(rig_, agent)
        wait_for(lambda: set(rig_.sandboxes()) == running, what=lambda: f"{rig_.sandboxes()} to be {running}")
        check_nothing_is_left(rig_, agent)
        agent.stop()


def test_the_next_agent_follows_manifest_changes_while_the_runtime_stalls(tmp_path):
    rng = random.Random(os.getpid())
    with rig(tmp_path) as rig_:
        wanted: dict[str, str] = {}
        for number in range(3):
            agent = rig_.agent()
            for name in rng.sample(["one", "two", "three"], 2):
                if name in wanted and rng.random() < 0.4:
                    (rig_.manifests / f"{name}.json").unlink()
                    del wanted[name]
                else:
                    wanted[name] = f"{name}-{number}"  # another pod, which replaces the previous one
                    write(rig_, name, wanted[name])
            time.sleep(rng.uniform(0.0, 2.0))
            rig_.stall()
            started = time.monotonic()
            agent.pods()
            took = time.monotonic() - started
            time.sleep(rng.uniform(0.0, 0.3))
            rig_.check_time()
            time.sleep(rng.uniform(0.0, 0.3))
            agent.kill()
        agent = rig_.agent()
        wait_for(lambda: {*agent.pods()} == {*wanted.values()}, what=lambda: f"{agent.pods()} to be {wanted}")
        wait_for(lambda: all(map(is_running, agent.pods().values())), what=lambda: f"{agent.pods()}")

        assert took < 2
        check_once(rig_, wanted.values())
        check_cpus(rig_, agent)
        assert rig_.sandboxes() == dict.fromkeys(wanted.values(), 1)
        assert rig_.left() == sorted([*wanted.values(), *(f"default_{name}_{uid}" for name, uid in wanted.items())])
        agent.stop()


def test_a_job_that_ends_while_the_disk_is_full_does_not_run_again(tmp_path):
    with rig(tmp_path) as rig_:
        agent = rig_.agent()
        for number in range(20):
            assert agent.http.post("/v1/pods", json=server(f"web-{number}")).status_code == 201
        assert agent.http.post("/v1/pods", json=job("once", 2)).status_code == 201
        wait_for(lambda: rig_.ran("once", "app") == 1)
        agent.kill()
        agent.log_file.unlink()  # it would exceed the limit, too
        agent = rig_.agent(largest=(rig_.root / NAME).stat().st_size - 1_000)
        rejected = agent.release("web-0")
        wait_for(lambda: agent.pods()["once"]["run"]["phase"] == "Succeeded", what=lambda: f"{agent.pods()['once']}")
        held = agent.pods()["once"]["status"]
        agent.kill()
        agent = rig_.agent()
        wait_for(lambda: has_finished(agent.pods()["once"]), what=lambda: f"{agent.pods()['once']}")

        assert rejected.status_code == 503
        assert held == "admitted"
        check_once(rig_, ["once", *(f"web-{number}" for number in range(20))])
        check_nothing_is_left(rig_, agent)
        agent.stop()
