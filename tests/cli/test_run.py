"""``alignup run``: real commands on this machine, killed, stopped, crowded and refused."""

import json
import os
import pty
import re
import signal
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.enforce import cgroup, process
from tests.agent.agents import running
from tests.cli.commands import alignup, environment
from tests.cli.runners import Bench, wait_for

TOLD = "env | grep ^ALIGNUP_ | grep -v RUN | sort"
PERMITTED = process.permitted_cpus()
BY = [
    "affinity",
    pytest.param(
        "cgroup",
        marks=pytest.mark.skipif(not cgroup.candidate_parents(), reason="no cpuset may be made here by this user"),
    ),
]

pytestmark = pytest.mark.skipif(PERMITTED.bit_count() < 2, reason="a machine with one CPU has none to give away")


def groups():
    """The groups of runs there are."""
    return {group for folder in cgroup.candidate_parents() for group in folder.glob(f"{cgroup.PREFIX}*")}


@pytest.fixture
def bench(tmp_path):
    before = groups()
    made = Bench(tmp_path)
    yield made
    for one in made.files() if made.directory.exists() else ():
        if one.get("cgroup"):
            for pid in cgroup.members(Path(one["cgroup"])):
                os.kill(pid, signal.SIGKILL)
            wait_for(partial(cgroup.remove, Path(one["cgroup"])))
    # Others may be running theirs; one that is left behind is empty and stays.
    wait_for(lambda: all(cgroup.members(group) for group in groups() - before))


def state(pid):
    """How a process is: R, S, T for stopped, Z when it has ended, nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def child_of(runner):
    """The command of a runner."""
    children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children")
    wait_for(lambda: children.read_text().split() and "ready" in runner.out)
    return int(children.read_text().split()[0])


@pytest.mark.parametrize("by", BY)
def test_the_command_is_where_it_is_told_to_be(bench, by):
    code, out, err = bench.run(
        "run", "--by", by, "--cpus", 1, "--", "sh", "-c", f"{TOLD}; grep Cpus_allowed_list /proc/self/status"
    )

    told = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    assert (code, err) == (0, "")
    assert out.split()[-1] == told["ALIGNUP_CPUS"]
    assert bits.parse(told["ALIGNUP_CPUS"]).bit_count() == 1
    assert told["ALIGNUP_NUMA_NODES"]
    assert re.fullmatch("sh-[0-9a-f]{10}", told["ALIGNUP_NAME"])
    assert bench.files() == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["true"], 0, "", id="one that ends well"),
        pytest.param(["sh", "-c", "exit 7"], 7, "", id="one with a code of its own"),
        pytest.param(["sh", "-c", "kill -TERM $$"], 143, "", id="one that a signal ends"),
        pytest.param(["sh", "-c", "kill -KILL $$"], 137, "", id="one that is killed"),
        pytest.param(["no-such-command"], 127, "alignup: no-such-command: No such file or directory\n", id="none"),
        pytest.param(["/dev/null"], 126, "alignup: /dev/null: Permission denied\n", id="one nobody may execute"),
    ],
)
def test_the_exit_code_is_the_commands(bench, words, code, said):
    assert bench.run("run", "--cpus", 1, "--", *words) == (code, "", said)
    assert bench.files() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--cpus", "many", "--", "true"], "quantities must match", id="an amount that is none"),
        pytest.param(["--device", "example.com/gpu", "--", "true"], "write it like", id="a device without a count"),
        pytest.param(["--nonsense", "--", "true"], "No such option", id="no such option"),
        pytest.param([], "Missing argument", id="no command"),
        pytest.param(["--wait", "true", "true"], "no number of seconds", id="a command in place of seconds"),
        pytest.param(["--machine", "pack:2", "--", "true"], "Add --dry-run", id="another machine"),
        pytest.param(
            ["--option", "nonsense=true", "--", "true"], "unknown Topology Manager", id="no such policy option"
        ),
        pytest.param(["--config", "/nowhere", "--", "true"], "No such file", id="no such configuration"),
    ],
)
def test_failures_of_ours_are_125(bench, words, said):
    code, out, err = bench.run("run", *words)

    assert (code, out) == (125, "")
    assert said in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_signals_reach_the_command(bench, number):
    name = number.name.removeprefix("SIG")
    runner = bench.start("run", "--", "sh", "-c", f"trap 'exit 33' {name}; echo ready; while :; do sleep 0.01; done")
    child_of(runner)

    runner.send(number)

    assert runner.end() == 33


def test_a_command_that_is_stopped_stops_its_runner_and_both_go_on(bench):
    script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    runner = bench.start("run", "--", "sh", "-c", script)
    command = child_of(runner)

    os.kill(command, signal.SIGSTOP)  # what a terminal sends would be ignored where there is none
    wait_for(lambda: state(command) == "T" and state(runner.pid) == "T")
    runner.send(signal.SIGCONT)
    wait_for(lambda: state(command) != "T" and state(runner.pid) != "T")
    runner.send(signal.SIGTERM)

    assert runner.end() == 3


def test_what_is_typed_reaches_the_command_once(tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        script = "trap 'echo INT' INT; echo ready; sleep 0.6; sleep 0.6; echo end"
        words = ["-m", "alignup", "run", "--by", "affinity", "--", "sh", "-c", script]
        os.execve(  # noqa: S606 - our own program
            sys.executable, [sys.executable, *words], environment({"ALIGNUP_RUN_DIR": str(tmp_path / "runs")})
        )
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"end" not in said:
        said += os.read(terminal, 1000)
    os.close(terminal)
    os.waitpid(pid, 0)

    assert said.count(b"INT") == 1


@pytest.mark.parametrize("by", BY)
def test_a_runner_that_is_killed_leaves_its_command_what_it_has_until_that_ends(bench, by):
    most = PERMITTED.bit_count() - 1
    runner = bench.start("run", "--by", by, "--cpus", most, "--", "sh", "-c", "echo ready; exec sleep 100")
    command = child_of(runner)

    runner.send(signal.SIGKILL)
    runner.end()
    meanwhile = bench.run("run", "--by", by, "--cpus", most, "--", "true")
    os.kill(command, signal.SIGKILL)
    wait_for(lambda: state(command) in {"", "Z"})
    after = bench.run("run", "--by", by, "--cpus", most, "--", "true")

    assert meanwhile[0] == 124
    assert after == (0, "", "")
    assert bench.files() == []


@pytest.mark.parametrize("by", BY)
def test_processes_left_behind_keep_what_they_have(bench, by):
    most = PERMITTED.bit_count() - 1
    code, out, err = bench.run(
        "run", "--by", by, "--cpus", most, "--", "sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!"
    )
    meanwhile = bench.run("run", "--cpus", most, "--", "true")
    os.kill(int(out), signal.SIGKILL)
    wait_for(lambda: state(int(out)) in {"", "Z"})

    assert code == 0
    assert re.match(r"note: processes of sh-\w+ go on and keep CPUs \S+, which is free again when they end\n", err)
    assert meanwhile[0] == 124
    assert bench.run("run", "--cpus", most, "--", "true")[0] == 0


def test_twenty_at_once_never_share_a_cpu_of_their_own(bench, tmp_path):
    log = tmp_path / "log"
    script = 'echo "+$ALIGNUP_CPUS" >> "$0"; sleep 0.02; echo "-$ALIGNUP_CPUS" >> "$0"'
    runners = [bench.start("run", "--wait", 60, "--cpus", 1, "--", "sh", "-c", script, log) for _ in range(20)]

    codes = [runner.end() for runner in runners]

    lines = log.read_text().splitlines()
    held: Counter[str] = Counter()
    for line in lines:
        held[line[1:]] += 1 if line[0] == "+" else -1
        assert held[line[1:]] <= 1, lines
    assert (codes, len(lines)) == ([0] * 20, 40)
    assert bench.files() == []


@pytest.mark.parametrize("by", BY)
def test_who_shares_leaves_cpus_that_become_somebodys_own(bench, by):
    sharing = bench.start("run", "--by", by, "--", "sh", "-c", "echo ready; exec sleep 100")
    command = child_of(sharing)
    before = bits.of(os.sched_getaffinity(command))
    owning = bench.start("run", "--by", by, "--cpus", 1, "--", "sh", "-c", "echo ready; exec sleep 100")
    own = bits.of(os.sched_getaffinity(child_of(owning)))
    meanwhile = bits.of(os.sched_getaffinity(command))
    owning.send(signal.SIGTERM)
    owning.end()
    after = bits.of(os.sched_getaffinity(command))
    sharing.send(signal.SIGTERM)

    assert sharing.end() == 143
    assert own.bit_count() == 1
    assert meanwhile == before & ~own
    assert after == before


def test_a_refusal_explains_itself(bench):
    code, out, err = bench.run("run", "--name", "huge", "--cpus", 9999, "--", "true")

    assert (code, out) == (124, "")
    assert err.startswith("Pod run/huge is rejected: ")
    assert "What did not fit" in err
    assert "What would admit it" in err


def test_who_would_not_fit_on_the_empty_machine_does_not_wait(bench):
    start = time.monotonic()

    assert bench.run("run", "--wait", "--cpus", 9999, "--", "true")[0] == 124
    assert time.monotonic() - start < 15


def test_waiting_ends_when_there_is_room_or_the_time_is_up(bench):
    most = PERMITTED.bit_count() - 1
    first = bench.start("run", "--cpus", most, "--", "sh", "-c", "echo ready; exec sleep 100")
    child_of(first)
    late = bench.run("run", "--cpus", most, "--wait", 0.2, "--", "true")
    waiting = bench.start("run", "--cpus", most, "--wait", 30, "--", "echo", "there")
    time.sleep(0.1)
    first.send(signal.SIGTERM)

    assert (first.end(), late[0]) == (143, 124)
    assert (waiting.end(), waiting.out) == (0, "there\n")


def test_a_dry_run_changes_nothing(bench):
    code, out, _ = bench.run("run", "--dry-run", "--cpus", 1, "--name", "try", "--", "no-such-command")
    refused = bench.run("run", "--dry-run", "--cpus", 9999, "--", "true")

    assert code == 0
    assert out.startswith("Pod run/try is admitted")
    assert "What the command would be told\n  ALIGNUP_CPUS=" in out
    assert not bench.directory.exists()
    assert refused[0] == 124


def test_a_dry_run_on_another_machine_aligns(bench):
    machine = "pack:2 numa:1(memory=16GiB) core:4 pu:1"
    asked = ("--cpus", 3, "--memory", "2Gi", "--device", "example.com/gpu=1", "--devices", "example.com/gpu=1@1")

    code, out, _ = bench.run("run", "--dry-run", "--machine", machine, *asked, "--", "true")

    told = [line.strip() for line in out.partition("would be told\n")[2].splitlines()]
    assert code == 0
    assert told == [
        "ALIGNUP_CPUS=4-6",
        "ALIGNUP_NUMA_NODES=1",
        "ALIGNUP_MEMORY_NODES=1",
        "ALIGNUP_DEVICES_EXAMPLE_COM_GPU=gpu-0",
    ]


def test_a_full_disk_keeps_the_command_from_running(bench, tmp_path):
    code, _, err = bench.run("run", "--cpus", 1, "--", "touch", tmp_path / "ran", largest=1100)

    assert code == 125
    assert "cannot be written: " in err
    assert not (tmp_path / "ran").exists()
    assert bench.files() == []
    assert bench.run("run", "--cpus", 1, "--", "true")[0] == 0


def test_a_directory_of_somebody_else_is_not_trusted(bench, tmp_path):
    if os.geteuid():
        foreign = Path("/usr")
    else:
        foreign = tmp_path / "foreign"
        foreign.mkdir(mode=0o700)
        os.chown(foreign, 12345, 12345)

    code, _, err = bench.run("run", "--", "true", env={"ALIGNUP_RUN_DIR": str(foreign)})

    assert code == 125
    assert "belongs to user" in err


def test_a_directory_others_may_enter_is_not_trusted(bench):
    bench.directory.mkdir(mode=0o755)

    code, _, err = bench.run("run", "--", "true")

    assert code == 125
    assert "make it mode 700" in err


def test_links_are_not_followed(bench, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    bench.directory.symlink_to(tmp_path / "elsewhere")
    whole = bench.run("run", "--", "true")
    bench.directory.unlink()
    bench.directory.mkdir(mode=0o700)
    (bench.directory / "run-x.json").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("{}")

    one = bench.run("run", "--", "true")

    assert (whole[0], one[0]) == (125, 125)
    assert "is no directory, or a link to one" in whole[2]
    assert "run-x.json cannot be read" in one[2]
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_no_privileges_are_needed(bench, tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)
    bench.directory.mkdir(mode=0o700)
    os.chown(bench.directory, 65534, 65534)

    code, out, err = bench.run("run", "--cpus", 1, "--", "sh", "-c", "id -u; echo $ALIGNUP_CPUS", user=65534)

    assert (code, err) == (0, "")
    assert out.split()[0] == "65534"


def test_a_run_inside_a_run_has_cpus_of_its_own(bench):
    inner = "--" if PERMITTED.bit_count() < 3 else "--cpus 1 --"  # of two CPUs one is all there is to give away
    script = f"echo $ALIGNUP_CPUS; {sys.executable} -m alignup run {inner} sh -c 'echo $ALIGNUP_CPUS'"

    code, out, _ = bench.run("run", "--cpus", 1, "--", "sh", "-c", script)

    outer, nested = map(bits.parse, out.split())
    assert code == 0
    assert not outer & nested


def test_an_agent_decides_where_one_runs(bench, tmp_path):
    with running(tmp_path / "agent") as agent:
        env = {"ALIGNUP_AGENT": f"unix:{agent.root / 'agent.sock'}"}
        good = bench.run("run", "--cpus", 1, "--", "sh", "-c", "echo $ALIGNUP_CPUS", env=env)
        would = bench.run("run", "--dry-run", "--cpus", 1, "--", "true", env=env)
        refused = bench.run("run", "--cpus", 9, "--", "true", env=env)
        other = bench.run("run", "--cpus", 1, "--policy", "none", "--", "true", env=env)
        clash = bench.run("run", "--option", "prefer-closest-numa-nodes=true", "--", "true", env=env)
        left = agent.pods()
        runner = bench.start("run", "--cpus", 1, "--", "sh", "-c", "echo ready; exec sleep 100", env=env)
        command = child_of(runner)
        runner.send(signal.SIGKILL)
        os.kill(command, signal.SIGKILL)
        runner.end()
        wait_for(lambda: state(command) in {"", "Z"})
        orphaned = list(agent.pods())
        again = bench.run("run", "--", "true", env=env)

        assert good == (0, "1\n", "")
        assert would[0] == 0
        assert refused[0] == 124
        assert "TopologyAffinityError" in refused[2]
        assert (other[0], clash[0]) == (125, 125)
        assert "lets nobody choose another" in other[2]
        assert left == {}
        assert len(orphaned) == 1
        assert again[0] == 0
        assert agent.pods() == {}
    gone = bench.run("run", "--", "true", env=env)
    assert gone[0] == 125
    assert "no agent answers" in gone[2]


def test_help_loads_nothing_heavy():
    assert "128+N" in alignup("run", "--help").stdout


def test_what_is_written_down_can_be_read(bench):
    runner = bench.start("run", "--name", "web", "--cpus", 1, "--", "sh", "-c", "echo ready; exec sleep 100")
    child_of(runner)
    (known,) = bench.files()
    runner.send(signal.SIGTERM)

    assert runner.end() == 143
    assert json.dumps(known)
    assert (known["name"], known["exclusive"], known["runner"]["pid"]) == ("web", True, runner.pid)
