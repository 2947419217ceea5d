"""``alignup audit`` and ``alignup ps``: what runs, where it is, and what was moved."""

import json
import os
import signal
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.enforce import cgroup, process
from tests.agent.agents import running
from tests.cli.runners import Bench, wait_for

PERMITTED = process.permitted_cpus()

pytestmark = pytest.mark.skipif(PERMITTED.bit_count() < 2, reason="a machine with one CPU has none to give away")


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture(params=["affinity", "cgroup"])
def web(bench, request):
    """A run that goes on, its command and the CPU it owns."""
    if request.param == "cgroup" and not cgroup.candidate_parents():
        pytest.skip("no cpuset may be made here by this user")
    script = "echo $$ $ALIGNUP_CPUS; exec sleep 100"
    runner = bench.start("run", "--by", request.param, "--name", "web", "--cpus", 1, "--", "sh", "-c", script)
    wait_for(lambda: "\n" in runner.out)
    pid, cpu = runner.out.split()
    yield int(pid), cpu
    runner.send(signal.SIGTERM)
    assert runner.end() == 143


def moved(bench, pid):
    """Have a command run anywhere."""
    (known,) = bench.files()
    if known["cgroup"]:
        cgroup.write(Path(known["cgroup"]), PERMITTED, nodes=0)
    process.pin(pid, PERMITTED)


def test_where_nothing_runs_all_is_well(bench):
    assert bench.run("audit") == (0, "nothing runs that was placed by alignup run\n", "")
    assert bench.run("audit", "-o", "prometheus")[1].splitlines()[2] == "alignup_runs 0"
    assert not bench.directory.exists()


def test_drift_is_found_put_back_and_found_no_more(bench, web):
    pid, cpu = web
    before = bench.run("audit")
    moved(bench, pid)
    found = bench.run("audit")
    measured = bench.run("audit", "-o", "prometheus")
    fixed = bench.run("audit", "--fix")
    after = bench.run("audit")

    assert before == (0, "1 run: all is where it was placed\n", "")
    assert found[0] == 1
    assert f"web: process {pid}: intended CPUs {cpu}, actually CPUs {bits.show(PERMITTED)}\n" in found[1]
    assert measured[0] == 1
    assert 'name="web",kind="cpus"} 1\n' in measured[1]
    assert fixed[0] == 0
    assert "(put back)\n1 run: all is where it was placed\n" in fixed[1]
    assert after[0] == 0
    assert bits.of(os.sched_getaffinity(pid)) == bits.parse(cpu)


def test_machines_are_told_everything(bench, web):
    pid, cpu = web
    moved(bench, pid)

    code, out, _ = bench.run("audit", "-o", "json")

    told = json.loads(out)
    (run,) = told["runs"]
    assert code == 1
    assert (run["name"], run["cpus"], run["processes"]) == ("web", cpu, [pid])
    assert {"run": run["uid"], "kind": "cpus", "fixed": False}.items() <= told["drift"][-1].items()


def test_a_ledger_that_knows_nothing_of_a_run_is_drift(bench, web):
    (bench.directory / "checkpoint.json").unlink()
    (bench.directory / "checkpoint.json.previous").unlink(missing_ok=True)

    code, out, _ = bench.run("audit", "--fix")

    assert code == 1
    assert f"web: the ledger: intended CPUs {web[1]}, actually it knows nothing of this run\n" in out


def test_what_runs_is_listed_without_an_agent_too(bench, web):
    code, out, err = bench.run("ps")
    told = json.loads(bench.run("ps", "-o", "json")[1])

    head, row = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["RUN", "CPUS", "MEMORY", "DEVICES", "SINCE", "PROCESSES", "COMMAND"]
    assert row.split()[:4] == ["web", web[1], "any", "-"]
    assert row.split()[5:] == ["1", "sh", "-c", "echo", "$$", "$ALIGNUP_CPUS;", "exec", "sleep", "100"]
    assert told["pods"] == []
    assert [run["name"] for run in told["runs"]] == ["web"]


def test_runs_of_an_agent_are_compared_with_what_it_knows(bench, tmp_path):
    with running(tmp_path / "agent") as agent:
        env = {"ALIGNUP_AGENT": f"unix:{agent.root / 'agent.sock'}"}
        runner = bench.start("run", "--name", "web", "--cpus", 1, "--", "sh", "-c", "echo; exec sleep 100", env=env)
        wait_for(lambda: runner.out)
        well = bench.run("audit", env=env)
        agent.release(next(iter(agent.pods())))
        forgotten = bench.run("audit", env=env)
        runner.send(signal.SIGTERM)
        assert runner.end() == 143

    assert well == (0, "1 run: all is where it was placed\n", "")
    assert forgotten[0] == 1
    assert "the agent: intended CPUs 1, actually it knows nothing of this run" in forgotten[1]
