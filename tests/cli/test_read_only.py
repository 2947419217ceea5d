"""Programs on a file system that is mounted read-only say so, and end with an exit code, without a traceback."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from alignup.testing.api_server import ApiServer
from tests.observe import api_objects
from tests.observe.observed_machine import observe_once

MACHINE = ("--machine", "pack:2 numa:1 core:4 pu:1")
REMOUNT = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


@cache
def can_mount() -> bool:
    command = ["unshare", "-r", "-m", "sh", "-c", "mount --bind /tmp /tmp && mount -o remount,ro,bind /tmp"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
    except FileNotFoundError:
        return False


def read_only(
    directory: Path, *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``alignup`` where *directory* is read-only, in a mount namespace of its own."""
    if not can_mount():
        pytest.skip("needs the right to create user and mount namespaces")
    command = [sys.executable, "-m", "alignup", *map(str, arguments)]
    finished = subprocess.run(  # noqa: S603
        ["unshare", "-r", "-m", "sh", "-c", REMOUNT, "sh", str(directory), *command],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
    )
    assert "Traceback" not in finished.stderr
    return finished


@pytest.mark.parametrize("exists", [False, True], ids=["a new directory", "an existing one"])
def test_the_agent_says_that_it_cannot_write(tmp_path, exists):
    root = tmp_path / "root"
    if exists:
        root.mkdir(mode=0o700)

    finished = read_only(tmp_path, "agent", "--root-dir", root, *MACHINE)

    assert finished.returncode == 1
    assert "Read-only file system" in finished.stderr
    assert str(root) in finished.stderr


def test_a_run_says_that_it_cannot_write_and_does_not_start(tmp_path):
    finished = read_only(
        tmp_path, "run", "--no-agent", "--cpus", "1", "--", "true", environment={"ALIGNUP_RUN_DIR": str(tmp_path)}
    )

    assert finished.returncode == 125
    assert "Read-only file system" in finished.stderr


def test_the_observer_needs_nothing_to_write(tmp_path):
    observe_once(tmp_path / "kubelet")
    server = ApiServer()
    server.serve(api_objects.SERVED)
    server.put(api_objects.node("host-a"))
    with api_objects.running_server(server):
        server.write_kubeconfig(tmp_path / "config")
        arguments = ("--kubeconfig", tmp_path / "config", "--kubelet-dir", tmp_path / "kubelet", "--node", "host-a")
        finished = read_only(tmp_path, "observe", "--once", "--no-configz", *arguments)
        states = server.objects("hoststates")

    assert (finished.returncode, len(states)) == (0, 1), finished.stderr
