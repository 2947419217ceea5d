"""Cases of starting and waiting for a command; ``test_lifecycle.py`` runs them in a separate process."""

import json
import os
import signal

import pytest

from alignup.align.errors import EnforceError
from alignup.run import lifecycle, process
from alignup.run.lifecycle import CommandStartError, RunJob
from alignup.run.process import ProcessIdentity
from alignup.run.registry import RunRegistry
from alignup.run.request import RunPlacement, RunRecord, RunRejectedError, RunRequest
from tests.run.commands import python

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED


def placed(*command, cpus):
    runner = ProcessIdentity.of(os.getpid())
    return RunRecord(uid="u1", name="job", runner=runner, command=command, since=0, cpus=cpus, exclusive=True)


def run(*command, cpus=LOWEST, **environment):
    with lifecycle.block_signals() as blocked:
        pid = lifecycle.start_command(
            placed(*command, cpus=cpus), environment={**os.environ, **environment}, blocked_signals=blocked
        )
        return lifecycle.wait_for_command(pid)


def test_the_exit_code_is_returned():
    assert run("sh", "-c", "exit $CODE", CODE="5") == 5


def test_the_environment_of_the_command_has_the_path():
    with pytest.raises(CommandStartError) as error:
        run("true", PATH="/nowhere")

    assert error.value.exit_code == lifecycle.NOT_FOUND


def test_a_file_that_is_not_executable_has_its_own_exit_code():
    with pytest.raises(CommandStartError, match="Permission denied") as error:
        run("/dev/null")

    assert error.value.exit_code == lifecycle.NOT_EXECUTABLE


def test_missing_cpus_are_an_error():
    with pytest.raises(EnforceError, match="cannot run the command on CPUs 9999"):
        run("true", cpus=1 << 9999)
    with pytest.raises(EnforceError, match=r"the kernel granted CPUs .* instead of .*,9999"):
        run("true", cpus=LOWEST | 1 << 9999)


def test_the_signal_mask_is_restored():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    run("true")

    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_the_command_neither_blocks_nor_ignores_signals():
    """Python ignores SIGPIPE; a command must not inherit that."""
    script = (
        "import json, os\n"
        "from alignup.run import lifecycle, process\n"
        "from tests.run.command_cases import placed\n"
        "with lifecycle.block_signals() as blocked:\n"
        "    run = placed('sh', '-c', 'grep Sig[BI] /proc/self/status', cpus=process.permitted_cpus())\n"
        "    pid = lifecycle.start_command(run, environment=os.environ, blocked_signals=blocked)\n"
        "    lifecycle.wait_for_command(pid)\n"
    )
    with python(script) as process_:
        lines = process_.communicate()[0].splitlines()

    # Real-time signals may be ignored because of the parent of the tests.
    masks = {line.split()[0]: int(line.split()[1], 16) & 0x7FFFFFFF for line in lines}
    assert json.dumps(masks) == json.dumps({"SigBlk:": 0, "SigIgn:": 0})


class SignalledAllocator:
    """Rejects the first runs, and sends SIGTERM to this process whenever a run is released, a rejected one too."""

    address = ""

    def __init__(self, rejections=0):
        self.rejections = rejections

    def load(self, *, active, finished):
        pass

    def save(self):
        pass

    def shared(self):
        return PERMITTED

    def admit(self, request):
        if self.rejections:
            self.rejections -= 1
            raise RunRejectedError("NoRoom", lambda: None)
        return RunPlacement(cpus=LOWEST, exclusive=True, nodes=1, memory=0, devices={}, strict=False)

    def release(self, uid):
        os.kill(os.getpid(), signal.SIGTERM)


class TerminatedError(Exception):
    pass


@pytest.fixture
def job(tmp_path):
    def terminate(number, frame):
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, terminate)
    request = RunRequest(uid="u1", name="job", amounts={}, policy=None, scope=None)
    yield RunJob(request, ("sh", "-c", "exit 5"), RunRegistry(tmp_path), "affinity", print)
    signal.signal(signal.SIGTERM, before)


def test_a_signal_after_the_command_has_ended_is_dropped(job):
    assert lifecycle.run(SignalledAllocator(), job) == 5


def test_a_signal_during_an_attempt_of_a_waiting_run_ends_it(job):
    with pytest.raises(TerminatedError):
        lifecycle.run(SignalledAllocator(rejections=1), job, timeout=60)
