"""A test that hangs becomes a failure, with the stacks of its threads, and the others run."""

import os
import subprocess
import sys

from tests.console_runner import ROOT

HANGING = """
import threading

import pytest


@pytest.fixture
def stuck():
    yield
    threading.Event().wait()


def test_hangs():
    threading.Event().wait()


def test_fails_and_hangs_at_its_end(stuck):
    raise AssertionError("first this")


def test_passes():
    pass
"""


def test_a_test_that_hangs_fails_with_its_stacks(tmp_path):
    file = tmp_path / "test_hanging.py"
    file.write_text(HANGING)
    ours = ("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "tests.conftest", "-p", "no:cacheprovider")
    options = ("-n", "1", "--dist", "worksteal")

    run = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", "pytest", *ours, *options, file],
        cwd=ROOT,
        env={**os.environ, "ALIGNUP_TEST_SECONDS": "2"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert run.returncode == 1, run.stdout
    for name in ("test_hangs", "test_fails_and_hangs_at_its_end"):
        assert f"crashed while running 'test_hanging.py::{name}'" in run.stdout
    assert "first this" in run.stdout
    assert "1 passed" in run.stdout
    for function in ("test_hangs", "stuck"):
        assert f"in {function}\n" in run.stderr
