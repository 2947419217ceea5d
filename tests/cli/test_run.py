"""``alignup run`` with real commands: signals, crashes, concurrency and rejections."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.cli import entry, exit_codes
from alignup.run import cgroup, process
from tests.agent.agents import running
from tests.cli.commands import environment, in_process, python
from tests.cli.run_processes import children, workbench
from tests.deadlines import wait_for
from tests.effort import SOAK, did, rounds
from tests.forked_processes import forked
from tests.short_paths import directory_for_all_users

EXAMPLE = Path(__file__).parents[2] / "examples" / "locality" / "machine.yaml"
PRINT_ENVIRONMENT = "env | grep ^ALIGNUP_ | grep -v RUN | sort"
PERMITTED = process.permitted_cpus()
MOST = PERMITTED.bit_count() - 1  #: CPUs of a run; one is reserved
SLEEP = ("sh", "-c", "echo ready; exec sleep 100")
BY = [
    "affinity",
    pytest.param(
        "cgroup",
        marks=pytest.mark.skipif(not cgroup.candidate_parents(), reason="this user may not create cpusets here"),
    ),
]

pytestmark = pytest.mark.skipif(PERMITTED.bit_count() < 2, reason="needs two CPUs")


def groups():
    """The existing cgroups of runs."""
    return {group for folder in cgroup.candidate_parents() for group in folder.glob(f"{cgroup.PREFIX}*")}


@pytest.fixture
def tmp_path():
    """A directory that other users can enter: pytest closes its own whenever it starts."""
    with directory_for_all_users() as directory:
        yield directory


@pytest.fixture
def bench(tmp_path):
    before = groups()
    with workbench(tmp_path) as made:
        yield made
    # Other tests may have active runs; a leaked cgroup would be empty.
    wait_for(lambda: all(cgroup.members(group) for group in groups() - before))


def process_state(pid):
    """R (running), S (sleeping), T (stopped), Z (zombie), or nothing when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def kill(pid):
    """Kill a process, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: process_state(pid) in {"", "Z"})


def said(runner, text):
    return text in runner.out


def command_of(runner):
    """The pid of the command that a runner started."""
    wait_for(lambda: children(runner.pid) and "ready" in runner.out)
    return children(runner.pid)[0]


@pytest.mark.parametrize("by", BY)
def test_the_command_runs_where_its_environment_says(bench, by):
    script = f"{PRINT_ENVIRONMENT}; grep Cpus_allowed_list /proc/self/status"
    code, out, err = bench.run("run", "--by", by, "--cpus", 1, "--", "sh", "-c", script)

    variables = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    assert (code, err) == (0, "")
    assert out.split()[-1] == variables["ALIGNUP_CPUS"]
    assert bits.parse(variables["ALIGNUP_CPUS"]).bit_count() == 1
    assert variables["ALIGNUP_NUMA_NODES"]
    assert re.fullmatch("sh-[0-9a-f]{10}", variables["ALIGNUP_NAME"])
    assert bench.records() == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(["true"], 0, "", id="success"),
        pytest.param(["sh", "-c", "exit 7"], 7, "", id="an exit code"),
        pytest.param(["sh", "-c", "kill -TERM $$"], 143, "", id="a signal"),
        pytest.param(["sh", "-c", "kill -KILL $$"], 137, "", id="SIGKILL"),
        pytest.param(
            ["no-such-command"], 127, "alignup: no-such-command: No such file or directory\n", id="command not found"
        ),
        pytest.param(["/dev/null"], 126, "alignup: /dev/null: Permission denied\n", id="not executable"),
    ],
)
def test_the_exit_code_is_that_of_the_command(bench, words, code, message):
    assert bench.run("run", "--cpus", 1, "--", *words) == (code, "", message)
    assert bench.records() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may search every directory")
def test_a_closed_directory_in_the_path_does_not_hide_that_a_command_is_missing(bench, tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    monkeypatch.setenv("PATH", f"{closed}:{os.environ['PATH']}")

    assert bench.run("run", "--cpus", 1, "--", "no-such-command")[0] == 127


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--device", "example.com/gpu", "--", "true"], "use a value like", id="a device without a count"),
        pytest.param([], "missing argument", id="no command"),
        pytest.param(["--wait", "true", "true"], "not a number of seconds", id="a command in place of seconds"),
        pytest.param(["--machine", "pack:2", "--", "true"], "Add --dry-run", id="another machine"),
        pytest.param(
            ["--option", "nonsense=true", "--", "true"], "there is no such option", id="an unknown policy option"
        ),
        pytest.param(["--option", "prefer-closest-numa-nodes", "--", "true"], "no value", id="an option without value"),
        pytest.param(
            ["--hugepages", "2Mi=64Mi", "--hugepages", "2Mi=2Mi", "--", "true"],
            "requested twice",
            id="a repeated resource",
        ),
        pytest.param(["--config", "/nowhere", "--", "true"], "No such file", id="a missing configuration file"),
    ],
)
def test_failures_before_the_command_starts_exit_with_125(bench, words, message):
    code, out, err = bench.run_here("run", *words)

    assert (code, out) == (125, "")
    assert message in err


def test_signals_are_forwarded_to_the_command(bench):
    traps = "".join(f"trap 'echo got-{name}' {name}; " for name in ("TERM", "INT", "HUP", "QUIT", "USR1"))
    script = f"{traps} trap 'exit 33' USR2; echo ready; while :; do sleep 0.01; done"
    runner = bench.start("run", "--", "sh", "-c", script)
    command_of(runner)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        runner.send(number)
        wait_for(partial(said, runner, f"got-{number.name.removeprefix('SIG')}\n"))
    runner.send(signal.SIGUSR2)

    assert runner.wait() == 33


def test_a_stopped_command_stops_its_runner_and_both_continue(bench):
    script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    runner = bench.start("run", "--", "sh", "-c", script)
    command = command_of(runner)

    os.kill(command, signal.SIGSTOP)  # SIGTSTP is ignored without a terminal
    wait_for(lambda: process_state(command) == "T" and process_state(runner.pid) == "T")
    runner.send(signal.SIGCONT)
    wait_for(lambda: process_state(command) != "T" and process_state(runner.pid) != "T")
    runner.send(signal.SIGTERM)

    assert runner.wait() == 3


def test_a_terminal_signal_reaches_the_command_once(tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        script = "trap 'echo INT' INT; trap 'echo end; exit' TERM; echo ready; while :; do sleep 0.05; done"
        words = ["-m", "alignup", "run", "--by", "affinity", "--", "sh", "-c", script]
        os.execve(  # noqa: S606 - our own program
            sys.executable, [sys.executable, *words], environment({"ALIGNUP_RUN_DIR": str(tmp_path / "runs")})
        )
    message = b""
    try:
        while b"ready" not in message:
            message += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        while b"INT" not in message:
            message += os.read(terminal, 1000)
        os.kill(pid, signal.SIGTERM)  # forwarded, after the interrupt if that were forwarded too
        while b"end" not in message:
            message += os.read(terminal, 1000)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)

    assert message.count(b"INT") == 1


@pytest.mark.parametrize("by", BY)
def test_the_command_of_a_killed_runner_keeps_its_cpus_until_it_ends(bench, by):
    runner = bench.start("run", "--by", by, "--cpus", MOST, "--", *SLEEP)
    command = command_of(runner)

    runner.send(signal.SIGKILL)
    runner.wait()
    meanwhile = bench.run("run", "--by", by, "--cpus", MOST, "--", "true")
    kill(command)
    after = bench.run("run", "--by", by, "--cpus", MOST, "--", "true")

    assert meanwhile[0] == 124
    assert after == (0, "", "")
    assert bench.records() == []


BACKGROUND = "sleep 100 >/dev/null 2>&1 & echo $!"
DETACHED = "env -i setsid -f sh -c 'echo $$; exec sleep 100 >/dev/null 2>&1' | head -n 1"  #: without environment


@pytest.mark.parametrize("script", [BACKGROUND, DETACHED], ids=["in the background", "in another session"])
@pytest.mark.parametrize("by", BY)
def test_background_processes_keep_the_cpus_of_their_run(bench, by, script):
    code, out, err = bench.run("run", "--by", by, "--cpus", MOST, "--", "sh", "-c", script)
    meanwhile = bench.run("run", "--cpus", MOST, "--", "true")
    kill(int(out))

    assert code == 0
    assert re.match(r"note: processes of sh-\w+ are still running and keep CPUs \S+ until they end\n", err)
    assert meanwhile[0] == 124
    assert bench.run("run", "--cpus", MOST, "--", "true")[0] == 0


def test_a_command_without_environment_keeps_its_cpus_when_its_runner_is_killed(bench):
    script = "echo $$; exec env -i sleep 100"
    runner = bench.start("run", "--by", "affinity", "--cpus", MOST, "--", "sh", "-c", script)
    wait_for(lambda: runner.out and bench.records()[0]["started"])
    pid = int(runner.out)
    runner.send(signal.SIGKILL)
    runner.wait()
    meanwhile = bench.run("run", "--cpus", MOST, "--", "true")
    kill(pid)

    assert meanwhile[0] == 124
    assert bench.run("run", "--cpus", MOST, "--", "true")[0] == 0


@pytest.mark.soak
@pytest.mark.skipif(not cgroup.candidate_parents(), reason="this user may not create cpusets here")
def test_a_killed_runner_leaves_nothing_behind(bench):
    """The runner is killed before each of its changes to directories; in a long run before each file operation.

    The next run or audit cleans up. The fixture checks that no cgroup is left.
    """
    audits = 0
    changes = {"os.mkdir", "os.rename", "os.fork"} | ({"os.remove", "os.rmdir", "open"} if SOAK else set())
    for number in count():
        bench.directory.mkdir(mode=0o700, exist_ok=True)
        environment = {**os.environ, "ALIGNUP_RUN_DIR": str(bench.directory), "ALIGNUP_AGENT": ""}
        runner = forked(run_until_change, number, changes, environment)
        runner.join(60)
        if runner.exitcode == 0:
            break
        assert runner.exitcode == -signal.SIGKILL
        if any(record["cgroup"] for record in bench.records()) and (SOAK or not audits):
            assert bench.run("audit", "--fix")[0] == 0
            assert bench.records() == []
            audits += 1

    assert bench.records() == []
    assert (number > 4, audits > 0) == (True, True)
    did("runners killed", number)


def run_until_change(number, changes, environment):
    """Run a command in a cgroup; kill this process before one of its changes."""
    os.environ.clear()
    os.environ.update(environment)
    counter = count()

    def kill(event, arguments):
        if event in changes and "__pycache__" not in str(arguments) and next(counter) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    sys.exit(entry.run(["run", "--by", "cgroup", "--cpus", "1", "--", "true"]))


def check_concurrent_runs(bench, options, environments):
    """Start a run in each of *environments* at once, and check that no two have the same CPU at the same time."""
    log = bench.root / "log"
    script = 'echo "+$ALIGNUP_CPUS" >> "$0"; sleep 0.02; echo "-$ALIGNUP_CPUS" >> "$0"'
    words = ("run", "--wait", 600, *options, "--cpus", 1, "--", "sh", "-c", script, log)
    runners = [bench.start(*words, env=env) for env in environments]

    codes = [runner.wait() for runner in runners]

    lines = log.read_text().splitlines()
    held: Counter[str] = Counter()
    for line in lines:
        held[line[1:]] += 1 if line[0] == "+" else -1
        assert held[line[1:]] <= 1, lines
    assert (codes, len(lines)) == ([0] * len(runners), 2 * len(runners))


@pytest.mark.soak
def test_concurrent_runs_never_share_an_exclusive_cpu(bench):
    check_concurrent_runs(bench, (), [{}] * rounds(8, soak=60))
    assert bench.records() == []


@pytest.mark.parametrize("by", BY)
def test_shared_runs_leave_cpus_that_become_exclusive(bench, by):
    sharing = bench.start("run", "--by", by, "--", *SLEEP)
    command = command_of(sharing)
    before = bits.of(os.sched_getaffinity(command))
    owning = bench.start("run", "--by", by, "--cpus", 1, "--", *SLEEP)
    exclusive = bits.of(os.sched_getaffinity(command_of(owning)))
    meanwhile = bits.of(os.sched_getaffinity(command))
    owning.send(signal.SIGTERM)
    owning.wait()
    after = bits.of(os.sched_getaffinity(command))
    sharing.send(signal.SIGTERM)

    assert sharing.wait() == 143
    assert exclusive.bit_count() == 1
    assert meanwhile == before & ~exclusive
    assert after == before


def test_a_rejection_is_explained(bench):
    code, out, err = bench.run_here("run", "--name", "huge", "--cpus", 9999, "--", "true")

    assert (code, out) == (124, "")
    assert err.startswith("Run huge is rejected: ")
    assert "What does not fit\n  - the machine has too little for the run: " in err
    assert "What would admit it" in err
    assert [word for word in ("Pod", "pod", "Container", "container run", "the node ", "--wait") if word in err] == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(("--devices-near", "nvlink;spread"), 0, "CUDA_VISIBLE_DEVICES=gpu-0,gpu-3", id="linked"),
        pytest.param(
            ("--device", "example.com/nic=2", "--devices-near", "same-switch"),
            0,
            "CUDA_VISIBLE_DEVICES=gpu-0,gpu-1",
            id="a NIC for each",
        ),
        pytest.param(
            ("--devices-near", "same-switch=nvidia.com/gpu;same-switch", "--device", "example.com/nic=2"),
            124,
            "no choice of devices satisfies same-switch=nvidia.com/gpu: gpu-0 and gpu-1 have no PCIe switch in common",
            id="impossible",
        ),
        pytest.param(("--devices-near", "near"), 125, '--devices-near: "near" is no locality of devices', id="wrong"),
        pytest.param(
            ("--devices-near", "spread=a.com/b"), 125, "the run does not request a.com/b; add --device", id="missing"
        ),
    ],
)
def test_a_run_gets_near_devices(bench, words, code, message):
    asked = ("--device", "nvidia.com/gpu=2", *words, "--machine", EXAMPLE, "--", "true")
    result = bench.run_here("run", "--dry-run", *asked)

    assert result[0] == code
    assert message in "".join(result[1:]).replace("\n    ", " ")


def test_a_run_whose_device_does_not_exist_is_rejected(bench, tmp_path):
    asked = ("--cpus", 1, "--device", "example.com/gpu=1", "--", "touch", tmp_path / "ran")
    code, out, err = bench.run_here("run", "--wait", "--name", "train", *asked)
    dry = bench.run_here("run", "--dry-run", "--name", "train", *asked)

    message = "Run train cannot start: this machine has no example.com/gpu"
    assert (code, out, dry[0]) == (124, "", 124)
    advice = "  'alignup machine show' lists the devices of this machine; an agent also has those of plugins."
    assert err.splitlines()[:2] == dry[1].splitlines() == [message, advice]
    assert not (tmp_path / "ran").exists()
    assert bench.run("run", "--device", "example.com/gpu=0", "--", "true")[0] == 0


def test_a_run_that_never_fits_does_not_wait(bench):
    """``--wait`` without a number waits for as long as it takes."""
    assert bench.run_here("run", "--wait", "--cpus", 9999, "--", "true")[0] == 124


def test_waiting_ends_when_the_run_fits_or_after_the_timeout(bench):
    first = bench.start("run", "--cpus", MOST, "--", *SLEEP)
    command_of(first)
    late = bench.run("run", "--cpus", MOST, "--wait", 0.2, "--", "true")
    waiting = bench.start("run", "--cpus", MOST, "--wait", 600, "--", "echo", "there")
    wait_for(lambda: process_state(waiting.pid) == "S")
    first.send(signal.SIGTERM)

    assert (first.wait(), late[0]) == (143, 124)
    assert (waiting.wait(), waiting.out) == (0, "there\n")


def test_a_dry_run_changes_nothing(bench):
    code, out, _ = bench.run_here("run", "--dry-run", "--cpus", 1, "--name", "try", "--", "no-such-command")
    rejected = bench.run_here("run", "--dry-run", "--cpus", 9999, "--", "true")

    assert code == 0
    assert out.startswith("Run try is admitted")
    assert "Environment of the command\n  ALIGNUP_CPUS=" in out
    assert not bench.directory.exists()
    assert rejected[0] == 124


def test_the_command_does_not_start_when_the_disk_is_full(bench, tmp_path):
    code, _, err = bench.run("run", "--cpus", 1, "--", "touch", tmp_path / "ran", largest=1100)

    assert code == 125
    assert "cannot be written: " in err
    assert not (tmp_path / "ran").exists()
    assert bench.records() == []
    assert bench.run("run", "--cpus", 1, "--", "true")[0] == 0


def test_a_directory_that_others_own_or_can_access_is_an_error(bench, tmp_path):
    bench.directory.mkdir(mode=0o755)
    if os.geteuid():
        foreign = Path("/usr")
    else:
        foreign = tmp_path / "foreign"
        foreign.mkdir(mode=0o700)
        os.chown(foreign, 12345, 12345)

    owned = bench.run_here("run", "--", "true", env={"ALIGNUP_RUN_DIR": str(foreign)})
    accessible = bench.run_here("run", "--", "true")

    assert (owned[0], accessible[0]) == (125, 125)
    assert "belongs to user" in owned[2]
    assert "chmod 700" in accessible[2]


def test_links_are_not_followed(bench, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    bench.directory.symlink_to(tmp_path / "elsewhere")
    whole = bench.run_here("run", "--", "true")
    bench.directory.unlink()
    bench.directory.mkdir(mode=0o700)
    (bench.directory / "run-x.json").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("{}")

    file = bench.run_here("run", "--", "true")

    assert (whole[0], file[0]) == (125, 125)
    assert "is not a directory" in whole[2]
    assert "run-x.json: Too many levels of symbolic links" in file[2]
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_an_unprivileged_user_can_run_commands(bench):
    bench.directory.mkdir(mode=0o700)
    os.chown(bench.directory, 65534, 65534)

    code, out, err = bench.run("run", "--cpus", 1, "--", "sh", "-c", "id -u; echo $ALIGNUP_CPUS", user=65534)

    assert (code, err) == (0, "")
    assert out.split()[0] == "65534"


@pytest.fixture
def claims(tmp_path):
    """The environment of runs that claim what they hold in a directory for all users."""
    directory = tmp_path / "claims"
    directory.mkdir()
    directory.chmod(0o1777)
    return {"ALIGNUP_CLAIMS_DIR": str(directory)}


def other_ledger(bench, claims, user=None):
    """The environment of another user's runs, or of another ledger of this user."""
    directory = bench.root / "other"
    directory.mkdir(mode=0o700)
    if user is not None:
        os.chown(directory, user, user)
    return {**claims, "ALIGNUP_RUN_DIR": str(directory)}


@pytest.mark.parametrize(
    "user",
    [
        pytest.param(None, id="two ledgers of a user"),
        pytest.param(65534, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"), id="two users"),
    ],
)
def test_runs_of_two_ledgers_never_share_an_exclusive_cpu(bench, claims, user):
    other = other_ledger(bench, claims, user)
    first = bench.start("run", "--cpus", MOST, "--", *SLEEP, env=claims)
    command_of(first)
    rejected = bench.run("run", "--cpus", 1, "--", "true", env=other, user=user)
    dry = bench.run("run", "--dry-run", "--cpus", 1, "--", "true", env=other, user=user)
    shared = bench.run("run", "--", "sh", "-c", "echo $ALIGNUP_CPUS", env=other, user=user)
    ignoring = bench.run("run", "--cpus", 1, "--ignore-claims", "--", "true", env=other, user=user)
    first.send(signal.SIGTERM)
    first.wait()
    after = bench.run("run", "--cpus", 1, "--", "true", env=other, user=user)

    assert (rejected[0], dry[0]) == (124, 124)
    assert f"user-{os.geteuid()}/" in rejected[2]
    assert bits.parse(shared[1].strip()).bit_count() == PERMITTED.bit_count() - MOST
    assert (ignoring[0], after) == (0, (0, "", ""))
    assert list(Path(claims["ALIGNUP_CLAIMS_DIR"]).iterdir()) == []


@pytest.mark.parametrize("by", BY)
def test_processes_that_are_left_keep_their_claim(bench, claims, by):
    other = other_ledger(bench, claims)
    _, out, _ = bench.run("run", "--by", by, "--cpus", MOST, "--", "sh", "-c", BACKGROUND, env=claims)
    meanwhile = bench.run("run", "--cpus", 1, "--", "true", env=other)
    kill(int(out))

    assert meanwhile[0] == 124
    assert bench.run("run", "--cpus", 1, "--", "true", env=other)[0] == 0


@pytest.mark.soak
def test_concurrent_runs_of_two_ledgers_never_share_an_exclusive_cpu(bench, claims):
    check_concurrent_runs(bench, ("--by", "affinity"), [claims, other_ledger(bench, claims)] * rounds(3, soak=30))


def test_a_dry_run_says_what_is_exclusive(bench, claims):
    words = ("run", "--dry-run", "--cpus", 1)
    everyone, this_user, later = (
        bench.run_here(*words, *more, "--", "true", env=env)[1].splitlines()[-1].partition(" are exclusive ")[2]
        for more, env in (((), claims), ((), {}), (("--ignore-claims",), claims))
    )

    assert everyone == f"among the runs of all users (claims in {claims['ALIGNUP_CLAIMS_DIR']})"
    among = f"among the runs of this user in {bench.directory}"
    assert this_user == f"only {among}: ALIGNUP_CLAIMS_DIR is empty"
    assert later == f"{among}, and among later runs of other users: --ignore-claims"


def test_a_nested_run_gets_other_cpus(bench):
    inner = "--" if PERMITTED.bit_count() < 3 else "--cpus 1 --"  # of two CPUs one is reserved
    script = f"echo $ALIGNUP_CPUS; {sys.executable} -m alignup run {inner} sh -c 'echo $ALIGNUP_CPUS'"

    code, out, _ = bench.run("run", "--cpus", 1, "--", "sh", "-c", script)

    outer, nested = map(bits.parse, out.split())
    assert code == 0
    assert not outer & nested


def test_a_running_agent_decides(bench, tmp_path):
    with running(tmp_path / "agent") as agent:
        env = {"ALIGNUP_AGENT": f"unix:{agent.root / 'agent.sock'}"}
        good = bench.run("run", "--cpus", 1, "--", "sh", "-c", "echo $ALIGNUP_CPUS", env=env)
        would = bench.run("run", "--dry-run", "--cpus", 1, "--", "true", env=env)
        rejected = bench.run("run", "--cpus", 9, "--", "true", env=env)
        other = bench.run("run", "--cpus", 1, "--policy", "none", "--", "true", env=env)
        absent = bench.run("run", "--device", "example.com/x=1", "--", "true", env=env)
        absent_dry = bench.run("run", "--dry-run", "--device", "example.com/x=1", "--", "true", env=env)
        clash = bench.run("run", "--option", "prefer-closest-numa-nodes=true", "--", "true", env=env)
        left = agent.pods()
        runner = bench.start("run", "--cpus", 1, "--", *SLEEP, env=env)
        command = command_of(runner)
        runner.send(signal.SIGKILL)
        os.kill(command, signal.SIGKILL)
        runner.wait()
        wait_for(lambda: process_state(command) in {"", "Z"})
        orphaned = list(agent.pods())
        again = bench.run("run", "--", "true", env=env)

        assert good == (0, "1\n", "")
        assert would[0] == 0
        assert rejected[0] == 124
        assert "TopologyAffinityError" in rejected[2]
        assert (other[0], clash[0]) == (125, 125)
        assert "does not let pods choose another" in other[2]
        assert (absent[0], absent_dry[0]) == (124, 124)
        assert absent[2] == (
            "not schedulable: no device plugin of the agent provides example.com/x\n"
            "To wait until it fits, use --wait.\n"
        )
        assert "no device plugin of the agent provides example.com/x" in absent_dry[1]
        assert left == {}
        assert len(orphaned) == 1
        assert again[0] == 0
        assert agent.pods() == {}
    gone = bench.run("run", "--", "true", env=env)
    assert gone[0] == 125
    assert "no agent answers" in gone[2]


def test_help_describes_the_exit_codes():
    assert "128+N" in in_process("run", "--help").stdout


def test_a_run_with_an_agent_imports_nothing_slow():
    """Every import adds to the start of every command."""
    modules = "alignup.cli.entry, alignup.cli.run, alignup.run.agent_allocator, alignup.run.lifecycle"

    run = python("-c", f"import sys, {modules}; print(*sys.modules)")

    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert loaded.isdisjoint({"msgspec", "rich", "yaml", "http", "httpx2", "asyncio"})
    assert "alignup.align.decision" not in run.stdout.split()


def test_a_run_is_recorded_while_it_is_running(bench):
    runner = bench.start("run", "--name", "web", "--cpus", 1, "--", *SLEEP)
    command_of(runner)
    (known,) = bench.records()
    runner.send(signal.SIGTERM)

    assert runner.wait() == 143
    assert json.dumps(known)
    assert (known["name"], known["exclusive"], known["runner"]["pid"]) == ("web", True, runner.pid)


def test_gpus_are_devices_of_nvidia():
    machine = ("--machine", "pack:2 numa:1(memory=16GiB) core:8 pu:2", "--devices", "nvidia.com/gpu=2@0,2@1")
    run = in_process("run", "--dry-run", *machine, "--cpus", "2", "--gpus", "2", "--", "train")

    assert run.returncode == 0
    assert "CUDA_VISIBLE_DEVICES=" in run.stdout


def test_gpus_are_requested_once():
    run = in_process("run", "--dry-run", "--gpus", "1", "--device", "nvidia.com/gpu=1", "--", "train")

    assert (run.returncode, run.stderr) == (
        exit_codes.RUN_FAILED,
        "alignup: --device nvidia.com/gpu=1: nvidia.com/gpu is requested twice\n",
    )


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--cpus", "99"), id="CPUs"),
        pytest.param(("--cpus", "2", "--memory", "99Gi"), id="memory"),
        pytest.param(("--cpus", "3", "--option", "full-pcpus-only=true"), id="threads of a core"),
        pytest.param(("--cpus", "20", "--policy", "single-numa-node"), id="a policy"),
        pytest.param(("--device", "example.com/gpu=1"), id="a device"),
        pytest.param(("--option", "nonsense=true"), id="an unknown option"),
        pytest.param(("--option", "prefer-closest-numa-nodes=maybe"), id="a wrong value of an option"),
    ],
)
def test_errors_speak_of_the_machine_not_of_a_kubelet(words):
    run = in_process("run", "--dry-run", "--machine", "pack:2 numa:1(memory=16GiB) core:8 pu:2", *words, "--", "train")

    assert run.returncode in {exit_codes.RUN_REJECTED, exit_codes.RUN_FAILED}
    kubelet = (
        r"kubelet|AdmissionError|AffinityError|AlignmentError|Allocate failed|memorymanager|plugin provides|strconv"
    )
    assert not re.search(kubelet, run.stdout + run.stderr)


def test_the_prolog_of_slurm_creates_the_claims_directory_and_never_fails(tmp_path):
    (tmp_path / "alignup").write_text('#!/bin/sh\necho "$@"; exit 1\n')
    (tmp_path / "alignup").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ALIGNUP_CLAIMS_DIR": str(tmp_path / "claims")}
    prolog = Path("examples/run/slurm-prolog.sh").absolute()
    done = subprocess.run([prolog], env=env, capture_output=True, text=True, check=False)  # noqa: S603 - our own

    assert (done.returncode, done.stdout) == (0, "audit --fix\n")
    assert (tmp_path / "claims").stat().st_mode & 0o7777 == 0o1777
