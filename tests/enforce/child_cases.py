"""A command is started where it belongs, or it is said why not; run by ``test_child.py``, in a process of its own."""

import json
import os
import signal

import pytest

from alignup.align.errors import EnforceError
from alignup.enforce import launcher, process
from alignup.enforce.launcher import CommandStartError, ProcessPlacement
from tests.enforce.commands import python

PERMITTED = process.permitted_cpus()
LOWEST = PERMITTED & -PERMITTED


def ran(*command, cpus=LOWEST, **environment):
    with launcher.block_signals() as blocked:
        pid = launcher.start(
            command, place=ProcessPlacement(cpus=cpus), environment={**os.environ, **environment}, blocked=blocked
        )
        return launcher.wait(pid)


def test_a_command_is_run_and_its_code_comes_home():
    assert ran("sh", "-c", "exit $SAID", SAID="5") == 5


def test_the_path_of_the_command_counts():
    with pytest.raises(CommandStartError) as error:
        ran("true", PATH="/nowhere")

    assert error.value.exit_code == launcher.NOT_FOUND


def test_a_command_nobody_may_execute_is_told_apart():
    with pytest.raises(CommandStartError, match="Permission denied") as error:
        ran("/dev/null")

    assert error.value.exit_code == launcher.NOT_EXECUTABLE


def test_cpus_that_cannot_be_had_are_an_error():
    with pytest.raises(EnforceError, match="cannot be put on CPUs 9999"):
        ran("true", cpus=1 << 9999)
    with pytest.raises(EnforceError, match=r"was to be put on CPUs .*,9999, and is granted .* only"):
        ran("true", cpus=LOWEST | 1 << 9999)


def test_signals_are_as_they_were_before_and_after():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    ran("true")

    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_the_command_hears_signals_that_python_does_not():
    """A broken pipe ends a command quietly, and nothing is held back from it."""
    script = (
        "import json, os\n"
        "from alignup.enforce import launcher, process\n"
        "with launcher.block_signals() as blocked:\n"
        "    place = launcher.ProcessPlacement(cpus=process.permitted_cpus())\n"
        "    command = ('sh', '-c', 'grep Sig[BI] /proc/self/status')\n"
        "    launcher.wait(launcher.start(command, place=place, environment=os.environ, blocked=blocked))\n"
    )
    with python(script) as one:
        lines = one.communicate()[0].splitlines()

    # What real-time signals are ignored is the business of whoever started the tests.
    masks = {line.split()[0]: int(line.split()[1], 16) & 0x7FFFFFFF for line in lines}
    assert json.dumps(masks) == json.dumps({"SigBlk:": 0, "SigIgn:": 0})


def test_what_comes_too_late_for_the_command_is_nobodys():
    with launcher.block_signals():
        os.kill(os.getpid(), signal.SIGTERM)

    assert signal.SIGTERM not in signal.sigpending()
