"""Agents that run pods are killed at any moment, and started again: every pod is as it was to be, and runs once."""

import json
import os
import random
import time

from alignup.state.checkpoint import NAME
from tests.agent.agents import wait_for
from tests.agent.pods.rigs import has_finished, is_running, job, owned, rig, server


def write(made, name, uid):
    """Have a manifest of a pod, in place of the one before."""
    document = server(uid)
    document["metadata"]["name"] = name
    (made.manifests / f"{name}.json").write_text(json.dumps(document))


def check_once(made, uids):
    """No container was started twice, let alone beside another of it."""
    assert made.twice() == []
    for uid in uids:
        marks = [file.name.removesuffix(".ran") for file in made.boxes.glob(f"{uid}-*.ran")]
        assert {mark: made.ran(*mark.rsplit("-", 1)) for mark in marks} == dict.fromkeys(marks, 1)


def check_cpus(made, agent):
    """The runtime was told to have every container on the CPUs that the ledger says."""
    wait_for(
        lambda: {name: [cpus] for name, cpus in owned(agent).items()} == made.running(),
        what=lambda: f"{owned(agent)} to be {made.running()}",
    )


def check_nothing_is_left(made, agent):
    """All are told to end, and nothing of anybody is left."""
    for uid in agent.pods():
        assert agent.release(uid).status_code in {200, 202}
    wait_for(lambda: not agent.pods(), what=lambda: f"no pods, not {agent.pods()}")
    assert not made.sandboxes()
    assert made.left() == []


def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path):
    chance = random.Random(os.getpid())
    running, done, gone = set[str](), set[str](), set[str]()
    number = 0
    with rig(tmp_path) as made:
        for _ in range(4):
            agent = made.agent()
            for _ in range(4):
                number += 1
                uid, once = f"pod-{number}", chance.random() < 0.3
                inits = chance.choice((0, 1, 2))
                document = job(uid, chance.uniform(0, 0.5)) if once else server(uid, chance.choice((0, 0, 1)), inits)
                assert agent.http.post("/v1/pods", json=document).status_code in {201, 202}
                (done if once else running).add(uid)
            for uid in chance.sample(sorted(running), len(running) // 4):
                assert agent.release(uid).status_code in {200, 202}
                running.discard(uid)
                gone.add(uid)
            time.sleep(chance.uniform(0.0, 0.7))
            agent.kill()
        agent = made.agent()
        wait_for(lambda: all(is_running(agent.pods().get(uid)) for uid in running), what=lambda: f"{agent.pods()}")
        wait_for(lambda: all(has_finished(agent.pods().get(uid)) for uid in done), what=lambda: f"{agent.pods()}")
        wait_for(lambda: not gone & agent.pods().keys(), what=lambda: f"{agent.pods()}")

        check_once(made, running | done)
        check_cpus(made, agent)
        wait_for(lambda: set(made.sandboxes()) == running, what=lambda: f"{made.sandboxes()} to be {running}")
        check_nothing_is_left(made, agent)
        agent.stop()


def test_manifests_are_followed_by_whoever_comes_next_while_the_runtime_stalls(tmp_path):
    chance = random.Random(os.getpid())
    with rig(tmp_path) as made:
        wanted: dict[str, str] = {}
        for turn in range(3):
            agent = made.agent()
            for name in chance.sample(["one", "two", "three"], 2):
                if name in wanted and chance.random() < 0.4:
                    (made.manifests / f"{name}.json").unlink()
                    del wanted[name]
                else:
                    wanted[name] = f"{name}-{turn}"  # another pod, which takes the place of the one before
                    write(made, name, wanted[name])
            time.sleep(chance.uniform(0.0, 2.0))
            made.stall()
            asked = time.monotonic()
            agent.pods()
            took = time.monotonic() - asked
            time.sleep(chance.uniform(0.0, 0.3))
            made.check_time()
            time.sleep(chance.uniform(0.0, 0.3))
            agent.kill()
        agent = made.agent()
        wait_for(lambda: {*agent.pods()} == {*wanted.values()}, what=lambda: f"{agent.pods()} to be {wanted}")
        wait_for(lambda: all(map(is_running, agent.pods().values())), what=lambda: f"{agent.pods()}")

        assert took < 2
        check_once(made, wanted.values())
        check_cpus(made, agent)
        assert made.sandboxes() == dict.fromkeys(wanted.values(), 1)
        assert made.left() == sorted([*wanted.values(), *(f"default_{name}_{uid}" for name, uid in wanted.items())])
        agent.stop()


def test_a_job_that_ended_while_nothing_could_be_written_is_not_run_again(tmp_path):
    with rig(tmp_path) as made:
        agent = made.agent()
        for number in range(20):
            assert agent.http.post("/v1/pods", json=server(f"web-{number}")).status_code == 201
        assert agent.http.post("/v1/pods", json=job("once", 2)).status_code == 201
        wait_for(lambda: made.ran("once", "app") == 1)
        agent.kill()
        agent.log_file.unlink()  # which would be too large too
        agent = made.agent(largest=(made.root / NAME).stat().st_size - 1_000)
        refused = agent.release("web-0")
        wait_for(lambda: agent.pods()["once"]["run"]["phase"] == "Succeeded", what=lambda: f"{agent.pods()['once']}")
        held = agent.pods()["once"]["status"]
        agent.kill()
        agent = made.agent()
        wait_for(lambda: has_finished(agent.pods()["once"]), what=lambda: f"{agent.pods()['once']}")

        assert refused.status_code == 503
        assert held == "admitted"
        check_once(made, ["once", *(f"web-{number}" for number in range(20))])
        check_nothing_is_left(made, agent)
        agent.stop()
