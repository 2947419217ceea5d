"""``alignup audit`` of containers: what an agent says it runs, compared with real processes in real groups."""

import json
import time
from dataclasses import replace

import pytest

from alignup.agent.address import TcpAddress
from alignup.align import bits
from alignup.cli import housing
from alignup.cli.asking import RunClient
from alignup.enforce import cgroup, process
from alignup.schema.api import OrphanSandbox, RuntimeStatus
from tests.cli.commands import inside
from tests.cli.standing_in import standing_in
from tests.enforce.commands import started
from tests.serve.agents import GPU, run_of, running
from tests.short_paths import short_directory

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED
ID = "45c48cce2e2d7fbdea1afc51c7c6ad26"
REPORT = RuntimeStatus(name="containerd", version="1.6.20", ready=True, network="host")

real = pytest.mark.skipif(
    not cgroup.candidate_parents() or PERMITTED == LOWEST,
    reason="no cpuset may be made here by this user, or there is one CPU",
)


@pytest.fixture
def node():
    with short_directory() as place, standing_in(place) as node:
        node.agent.report = REPORT
        yield node


@pytest.fixture
def audit(node, tmp_path):
    def run(*words, **env):
        return inside("audit", *words, env={**node.env, "ALIGNUP_RUN_DIR": str(tmp_path / "runs"), **env})

    return run


@pytest.fixture
def pid(node):
    """The process of a container that is to be on the lowest CPU, and is."""
    group = cgroup.create(f"cri-{ID}", LOWEST, nodes=0)
    with started("sleep", "60") as sleeper:
        cgroup.join(group, sleeper.pid)
        node.admit("web", run_of(running(id=ID, pid=sleeper.pid, cpus=LOWEST)))
        yield sleeper.pid
        sleeper.kill()
    deadline = time.monotonic() + 10
    while not cgroup.remove(group):
        assert time.monotonic() < deadline


def widened(pid):
    group = cgroup.cpuset_cgroup(pid)
    assert group is not None
    cgroup.write(group, PERMITTED, nodes=0)
    process.pin(pid, PERMITTED)
    return group


@real
def test_drift_is_found_put_back_and_found_no_more(audit, pid):
    before = audit()
    group = widened(pid)
    found = audit()
    fixed = audit("--fix")
    after = audit()

    cpus = f"intended CPUs {bits.show(LOWEST)}, actually CPUs {bits.show(PERMITTED)}"
    assert (before.returncode, before.stdout) == (0, "1 container: all is where it was placed\n")
    assert found.returncode == 1
    assert found.stdout.splitlines() == [f"default/web/app: {group}: {cpus}", f"default/web/app: process {pid}: {cpus}"]
    assert fixed.returncode == 0
    assert fixed.stdout.splitlines()[1:] == [
        f"default/web/app: process {pid}: {cpus} (put back)",
        "1 container: all is where it was placed",
    ]
    assert (after.returncode, after.stderr) == (0, "")


@real
def test_machines_are_told_everything(audit, pid):
    group = widened(pid)

    told = json.loads(audit("-o", "json").stdout)
    measured = audit("-o", "prometheus").stdout.splitlines()

    (box,) = told["containers"]
    assert (box["uid"], box["pod"], box["container"]) == ("default-web", "default/web", "app")
    assert (box["cpus"], box["cgroup"], box["processes"]) == (bits.show(LOWEST), str(group), [pid])
    whose = {"pod": "default-web", "container": "app", "kind": "cpus", "fixed": False}
    assert whose.items() <= told["drift"][-1].items()
    assert "alignup_audited_containers 1" in measured
    labels = 'uid="default-web",namespace="default",pod="web",container="app"'
    assert f'alignup_container_drift{{{labels},kind="cpus"}} 1' in measured
    assert f'alignup_container_drift{{{labels},kind="pages"}} 0' in measured


@real
def test_a_container_that_is_just_being_moved_has_not_drifted(node, audit, pid):
    """The agent has put it elsewhere since it was asked, so it is asked again."""
    widened(pid)
    asked = node.agent.entries

    def entries():
        found = asked()
        node.agent.run("default-web", run_of(running(id=ID, pid=pid, cpus=PERMITTED)))
        return found

    node.agent.entries = entries

    assert (audit().returncode, node.agent.known["default-web"].run.containers[0].cpus) == (0, PERMITTED)


def test_containers_that_nobody_knows_are_drift_that_only_people_can_clear_away(node, audit):
    stray = OrphanSandbox(id="abc", pod="shop/old", uid="u1", containers=("app",), why="its pod is not known any more")
    node.agent.report = replace(REPORT, strays=(stray,), problems=("it is slow",))

    found = audit("--fix")
    told = json.loads(audit("-o", "json").stdout)
    measured = audit("-o", "prometheus").stdout.splitlines()

    line = "shop/old: sandbox abc: intended gone, actually there: its pod is not known any more\n"
    assert (found.returncode, found.stdout, found.stderr) == (1, line, "note: it is slow\n")
    assert {"pod": "u1", "container": "app", "kind": "stray", "fixed": False}.items() <= told["drift"][0].items()
    assert told["troubles"] == ["it is slow"]
    assert {"alignup_runs 0", "alignup_audited_containers 0", "alignup_strays 1"} <= set(measured)


def test_devices_that_are_gone_are_drift(node, audit):
    with started("sleep", "60") as sleeper:
        uid = node.admit("web", run_of(running(id=ID, pid=sleeper.pid)), gpu="1")
        node_file = {"container_path": "/dev/gpu", "host_path": "/dev/no-such-device", "permissions": "rw"}
        grant = {"envs": {}, "mounts": [], "devices": [node_file], "annotations": {}, "cdi": []}
        known = node.agent.known[uid]
        node.agent.known[uid] = replace(known, grants={"app": {GPU: grant}})

        found = audit()

        sleeper.kill()
    assert found.returncode == 1
    assert found.stdout.splitlines() == [
        f"default/web/app: {GPU} gpu-0: intended there, actually gone",
        f"default/web/app: {GPU} /dev/no-such-device: intended there, actually gone",
    ]


def test_a_container_that_has_ended_since_is_no_drift(node, audit):
    with started("true") as ended:
        ended.wait()
        node.admit("web", run_of(running(id=ID, pid=ended.pid, cpus=LOWEST)))

        run = audit()

    assert (run.returncode, run.stdout) == (0, "nothing runs that was placed by alignup run or the agent\n")


def test_pods_that_nobody_runs_are_not_looked_at(node, audit):
    node.agent.report = None
    node.admit("web")

    assert audit().stdout == "nothing runs that was placed by alignup run\n"


def test_an_agent_that_is_named_has_to_be_there(audit, tmp_path):
    run = audit(ALIGNUP_AGENT=f"unix:{tmp_path / 'nowhere.sock'}")

    assert run.returncode == 1
    assert run.stderr.startswith("alignup: no agent answers at unix:")
    assert "--no-agent" not in run.stderr


def test_an_agent_elsewhere_has_its_containers_elsewhere():
    """Numbers of processes mean nothing here then."""
    look = housing.audit_containers(RunClient(TcpAddress("node-7.example.com", 8080)))

    assert look.containers == ()
    assert look.notes == (
        "the agent at node-7.example.com:8080 is on another machine: its containers are not looked at",
    )
