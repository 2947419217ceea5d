"""Commands are started in a separate process: the tests signal themselves, and threads here could catch that."""

import os
import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("command_cases.py")


def test_command_cases():
    run = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "-o", "addopts=", CASES],
        cwd=CASES.parents[2],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
        check=False,
    )

    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
