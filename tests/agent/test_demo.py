"""``make run``: the demo of the agent."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.run_processes import children
from tests.deadlines import wait_for

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "examples/agent_demo.py"]


def test_the_demo_places_pods_and_ends_with_once():
    run = subprocess.run(  # noqa: S603 - our own
        DEMO, cwd=ROOT, env={**os.environ, "ONCE": "1"}, capture_output=True, text=True, timeout=60, check=False
    )

    assert (run.returncode, run.stderr) == (0, "")
    assert "Two device plugins have registered" in run.stdout
    assert "ml/finetune is admitted: train: example.com/gpu gpu-0" in run.stdout
    assert "ml/trainer-0 is waiting (position 1): TopologyAffinityError" in run.stdout
    assert re.search(r"^ml/trainer-0 +admitted ", run.stdout, re.MULTILINE)
    assert "variables for ml/trainer-0: GPU_DEVICES=gpu-0 NIC_DEVICES=nic-0" in run.stdout
    assert "export ALIGNUP_AGENT=unix:" in run.stdout
    assert run.stdout.splitlines()[-1] == "ONCE=1 ends the agent now: the next steps need 'make run' without it."


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 0, id="Ctrl-C"), pytest.param(signal.SIGTERM, 143, id="SIGTERM")]
)
def test_the_demo_runs_until_a_signal_and_leaves_no_process_behind(number, code):
    with subprocess.Popen(DEMO, cwd=ROOT, env={**os.environ, "ONCE": ""}, stdout=subprocess.PIPE, text=True) as demo:  # noqa: S603 - our own
        try:
            assert demo.stdout is not None
            exported = next(line for line in demo.stdout if "ALIGNUP_AGENT=unix:" in line)
            socket = exported.partition("unix:")[2].split()[0]
            assert any("until Ctrl-C" in line for line in demo.stdout)
            exists = Path(socket).is_socket()
            started = children(demo.pid)
            demo.send_signal(number)
            rest, _ = demo.communicate(timeout=60)
        finally:
            demo.kill()

    assert (exists, len(started)) == (True, 3)
    assert demo.returncode == code
    assert "The agent stops." in rest
    assert not Path(socket).exists()
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_demo_starts_leaves_no_process_behind(number):
    with subprocess.Popen(DEMO, cwd=ROOT, stdout=subprocess.DEVNULL) as demo:  # noqa: S603 - our own
        wait_for(lambda: children(demo.pid))
        started = children(demo.pid)
        demo.send_signal(number)
        assert demo.wait(60) == 128 + number

    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
