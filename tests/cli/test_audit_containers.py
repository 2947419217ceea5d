"""``alignup audit`` with a fake agent, and with real processes in real cgroups."""

import json
import os
from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.cli.agent_client import AgentClient

from alignup.run import cgroup, process
from alignup.run.placement_audit import audit_containers
from alignup.web.address import TcpAddress
from tests.agent.fake_backend import GPU, run_of, running
from tests.cli.commands import in_process
from tests.cli.fake_agent import serve_fake_agent
from tests.deadlines import wait_for
from tests.run.commands import started
from tests.short_paths import short_directory

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED
ID = os.urandom(16).hex()  #: random, since tests run in parallel and cgroups are shared
REPORT = RuntimeStatus(runtime=RuntimeInfo(name="containerd", version="1.6.20", ready=True, network="host"))

real = pytest.mark.skipif(
    not cgroup.candidate_parents() or PERMITTED == LOWEST,
    reason="this user may not create cpusets here, or there is only one CPU",
)


@pytest.fixture
def node():
    with short_directory() as place, serve_fake_agent(place) as node:
        node.agent.report = REPORT
        yield node


@pytest.fixture
def audit(node, tmp_path):
    def run(*words, **env):
        return in_process("audit", *words, env={**node.env, "ALIGNUP_RUN_DIR": str(tmp_path / "runs"), **env})

    return run


@pytest.fixture
def pid(node):
    """The process of a container that belongs on the lowest CPU, and is there."""
    group = cgroup.create(f"cri-{ID}", LOWEST, nodes=0)
    with started("sleep", "60") as sleeper:
        cgroup.join(group, sleeper.pid)
        node.admit("web", run_of(running(id=ID, pid=sleeper.pid, cpus=LOWEST)))
        yield sleeper.pid
        sleeper.kill()
    wait_for(lambda: cgroup.remove(group))


def allow_all_cpus(pid):
    group = cgroup.cpuset_cgroup(pid)
    assert group is not None
    cgroup.write(group, PERMITTED, nodes=0)
    process.pin(pid, PERMITTED)
    return group


@real
def test_drift_is_found_and_fixed(audit, pid):
    before = audit()
    group = allow_all_cpus(pid)
    found = audit()
    fixed = audit("--fix")
    after = audit()

    cpus = f"intended CPUs {bits.show(LOWEST)}, actual CPUs {bits.show(PERMITTED)}"
    assert (before.returncode, before.stdout) == (0, "1 container: no drift\n")
    assert found.returncode == 1
    assert found.stdout.splitlines() == [f"default/web/app: {group}: {cpus}", f"default/web/app: process {pid}: {cpus}"]
    assert fixed.returncode == 0
    assert fixed.stdout.splitlines()[1:] == [
        f"default/web/app: process {pid}: {cpus} (fixed)",
        "1 container: no drift",
    ]
    assert (after.returncode, after.stderr) == (0, "")


@real
def test_json_and_prometheus_hold_the_containers_and_the_drift(audit, pid):
    group = allow_all_cpus(pid)

    document = json.loads(audit("-o", "json").stdout)
    measured = audit("-o", "prometheus").stdout.splitlines()

    (box,) = document["containers"]
    assert (box["uid"], box["pod"], box["container"]) == ("default-web", "default/web", "app")
    assert (box["cpus"], box["cgroup"], box["processes"]) == (bits.show(LOWEST), str(group), [pid])
    whose = {"pod": "default-web", "container": "app", "kind": "cpus", "fixed": False}
    assert whose.items() <= document["drift"][-1].items()
    assert "alignup_audited_containers 1" in measured
    labels = 'uid="default-web",namespace="default",pod="web",container="app"'
    assert f'alignup_container_drift{{{labels},kind="cpus"}} 1' in measured
    assert f'alignup_container_drift{{{labels},kind="pages"}} 0' in measured


@real
def test_a_container_that_the_agent_is_moving_has_not_drifted(node, audit, pid):
    """The agent moves it between the first and the second check."""
    allow_all_cpus(pid)
    asked = node.agent.pod_views

    def entries():
        found = asked()
        node.agent.run("default-web", run_of(running(id=ID, pid=pid, cpus=PERMITTED)))
        return found

    node.agent.pod_views = entries

    assert (audit().returncode, node.agent.known["default-web"].run.containers[0].cpus) == (0, bits.show(PERMITTED))


def test_unknown_sandboxes_are_drift_that_is_not_fixed(node, audit):
    orphan = OrphanSandbox(id="abc", pod="shop/old", uid="u1", containers=("app",), why="its pod is not known any more")
    node.agent.report = RuntimeStatus(runtime=REPORT.runtime, strays=(orphan,), problems=("it is slow",))

    found = audit("--fix")
    document = json.loads(audit("-o", "json").stdout)
    measured = audit("-o", "prometheus").stdout.splitlines()

    line = "shop/old: sandbox abc: intended removed, actual present: its pod is not known any more\n"
    assert (found.returncode, found.stdout, found.stderr) == (1, line, "note: it is slow\n")
    assert {"pod": "u1", "container": "app", "kind": "stray", "fixed": False}.items() <= document["drift"][0].items()
    assert document["troubles"] == ["it is slow"]
    assert {"alignup_runs 0", "alignup_audited_containers 0", "alignup_strays 1"} <= set(measured)


def test_missing_devices_are_drift(node, audit):
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
        f"default/web/app: {GPU} gpu-0: intended present, actual missing",
        f"default/web/app: {GPU} /dev/no-such-device: intended present, actual missing",
    ]


def test_a_container_that_has_just_ended_is_not_drift(node, audit):
    with started("true") as ended:
        ended.wait()
        node.admit("web", run_of(running(id=ID, pid=ended.pid, cpus=LOWEST)))

        run = audit()

    assert (run.returncode, run.stdout) == (0, "no runs or containers to audit\n")


def test_pods_without_a_runtime_are_not_audited(node, audit):
    node.agent.report = RuntimeStatus()
    node.admit("web")

    assert audit().stdout == "no runs to audit\n"


def test_a_named_agent_must_answer(audit, tmp_path):
    run = audit(ALIGNUP_AGENT=f"unix:{tmp_path / 'nowhere.sock'}")

    assert run.returncode == 1
    assert run.stderr.startswith("alignup: no agent answers at unix:")
    assert "--no-agent" not in run.stderr


def test_the_containers_of_a_remote_agent_are_not_audited():
    """Its pids mean nothing on this machine."""
    look = audit_containers(AgentClient(TcpAddress("node-7.example.com", 8080)))

    assert look.containers == ()
    assert look.notes == ("the agent at node-7.example.com:8080 is remote; its containers are not audited",)
