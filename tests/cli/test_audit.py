"""``alignup audit`` and ``alignup ps`` with real runs."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.documents import codec
from alignup.documents.nri_placements import FILE, PlacementsDocument
from alignup.run import cgroup, process
from alignup.run.request import RUN_VARIABLE
from tests.agent.agents import running
from tests.cli.run_processes import workbench
from tests.deadlines import wait_for
from tests.run.commands import started

PERMITTED = process.permitted_cpus()

pytestmark = pytest.mark.skipif(PERMITTED.bit_count() < 2, reason="needs two CPUs")


@pytest.fixture
def bench(tmp_path):
    with workbench(tmp_path) as made:
        yield made


@pytest.fixture(params=["affinity", "cgroup"])
def web(bench, request):
    """The pid and the exclusive CPU of an active run."""
    if request.param == "cgroup" and not cgroup.candidate_parents():
        pytest.skip("this user may not create cpusets here")
    script = "echo $$ $ALIGNUP_CPUS; exec sleep 100"
    runner = bench.start("run", "--by", request.param, "--name", "web", "--cpus", 1, "--", "sh", "-c", script)
    wait_for(lambda: "\n" in runner.out)
    pid, cpu = runner.out.split()
    yield int(pid), cpu
    runner.send(signal.SIGTERM)
    assert runner.wait() == 143


def moved(bench, pid):
    """Let a command run on any CPU."""
    (known,) = bench.records()
    if known["cgroup"]:
        cgroup.write(Path(known["cgroup"]), PERMITTED, nodes=0)
    process.pin(pid, PERMITTED)


def test_without_runs_there_is_no_drift(bench):
    assert bench.run_here("audit") == (0, "no runs to audit\n", "")
    assert bench.run_here("audit", "-o", "prometheus")[1].splitlines()[2] == "alignup_runs 0"
    assert not bench.directory.exists()


def test_drift_is_found_and_fixed(bench, web):
    pid, cpu = web
    before = bench.run_here("audit")
    moved(bench, pid)
    drifted = bench.run_here("audit")
    code, out, _ = bench.run_here("audit", "-o", "json")
    measured = bench.run_here("audit", "-o", "prometheus")
    fixed = bench.run_here("audit", "--fix")
    after = bench.run_here("audit")

    assert before == (0, "1 run: no drift\n", "")
    assert drifted[0] == 1
    assert f"web: process {pid}: intended CPUs {cpu}, actual CPUs {bits.show(PERMITTED)}\n" in drifted[1]
    document = json.loads(out)
    (run,) = document["runs"]
    assert code == 1
    assert (run["name"], run["cpus"], run["processes"]) == ("web", cpu, [pid])
    assert {"run": run["uid"], "kind": "cpus", "fixed": False}.items() <= document["drift"][-1].items()
    assert measured[0] == 1
    assert 'name="web",kind="cpus"} 1\n' in measured[1]
    assert fixed[0] == 0
    assert "(fixed)\n1 run: no drift\n" in fixed[1]
    assert after[0] == 0
    assert bits.of(os.sched_getaffinity(pid)) == bits.parse(cpu)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_a_stranger_does_not_get_the_cpus_of_a_run(bench, web):
    """Any user can read the uid of a run from the name of its cgroup, and set it in the environment."""
    pid, _ = web
    (known,) = bench.records()
    with started("sleep", "60", env={RUN_VARIABLE: known["uid"]}, user=65534) as stranger:
        before = Path(f"/proc/{stranger.pid}/cgroup").read_text()
        moved(bench, pid)
        code, out, _ = bench.run_here("audit", "--fix")

        assert code == 0
        assert str(stranger.pid) not in out
        assert Path(f"/proc/{stranger.pid}/cgroup").read_text() == before
        assert bits.of(os.sched_getaffinity(stranger.pid)) == PERMITTED
    assert bits.of(os.sched_getaffinity(pid)) == bits.parse(known["cpus"])


def test_a_run_that_is_not_in_the_ledger_is_drift(bench, web):
    for path in bench.directory.glob("alignup.sqlite*"):
        path.unlink()

    code, out, _ = bench.run_here("audit", "--fix")

    assert code == 1
    assert f"web: the ledger: intended CPUs {web[1]}, actual no such run\n" in out


def test_ps_lists_runs_without_an_agent(bench, web):
    code, out, err = bench.run_here("ps")
    document = json.loads(bench.run_here("ps", "-o", "json")[1])

    head, row = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["RUN", "CPUS", "MEMORY", "DEVICES", "SINCE", "PROCESSES", "COMMAND"]
    assert row.split()[:4] == ["web", web[1], "any", "-"]
    assert row.split()[5:] == ["1", "sh", "-c", "echo", "$$", "$ALIGNUP_CPUS;", "exec", "sleep", "100"]
    assert document["pods"] == []
    assert [run["name"] for run in document["runs"]] == ["web"]


def test_runs_are_compared_with_the_agent_that_admitted_them(bench, short_path):
    with running(short_path / "agent") as agent:
        env = {"ALIGNUP_AGENT": f"unix:{agent.root / 'agent.sock'}"}
        runner = bench.start("run", "--name", "web", "--cpus", 1, "--", "sh", "-c", "echo; exec sleep 100", env=env)
        wait_for(lambda: runner.out)
        well = bench.run_here("audit", env=env)
        agent.release(next(iter(agent.pods())))
        forgotten = bench.run_here("audit", env=env)
        runner.send(signal.SIGTERM)
        assert runner.wait() == 143

    assert well == (0, "1 run: no drift\n", "")
    assert forgotten[0] == 1
    assert "the agent: intended CPUs 1, actual no such run" in forgotten[1]


def test_the_containers_of_the_nri_plugin_are_audited(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("alignup.cli.audit._PAUSE", 0)
    document = PlacementsDocument(mode="assist", written=time.time())
    (tmp_path / FILE).write_bytes(codec.encode(document))
    assert bench.run_here("audit", "--nri", tmp_path) == (0, "no containers to audit\n", "")
    (tmp_path / FILE).write_bytes(codec.encode(document.replace(problem="the runtime closed the connection")))
    code, out, _ = bench.run_here("audit", "--nri", tmp_path)
    assert code == 1
    assert "the runtime: intended connected, actual not connected (the runtime closed the connection)" in out


def test_an_audit_of_containers_says_what_is_wrong_with_its_options(bench, tmp_path):
    assert "start 'alignup nri' with --state-dir" in bench.run_here("audit", "--nri", tmp_path)[2]
    assert "restart 'alignup nri'" in bench.run_here("audit", "--nri", tmp_path, "--fix")[2]
