"""Commands that are started, in a process of its own: it sends itself signals, which threads here could catch."""

import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("child_cases.py")


def test_a_command_is_started_where_it_belongs_or_it_is_said_why_not():
    run = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CASES],
        cwd=CASES.parents[2],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
        check=False,
    )

    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
