"""What an agent must survive, in full: hundreds of kills, full and read-only disks, nonsense, thousands of pods.

The short forms are in ``tests/agent/test_faults.py``. Disks of their own need root and mounts; without these the tests
about them are skipped.
"""
# ruff: noqa: S101 - a test, as those in tests/

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.agents import CONFIG, running, wait_for
from tests.agent.load import come_and_go, kill_again_and_again, memory_of, nonsense

KILLS = 200
ROOMY = {**CONFIG, "maxPods": 1000}


def test_200_kills_under_load_keep_every_promise(tmp_path: Path) -> None:
    """After each: every acknowledged placement is there, nothing is half-made, nothing is given twice."""
    assert kill_again_and_again(tmp_path / "root", rounds=KILLS, seed=int.from_bytes(os.urandom(4), "big")) > 1_000


def test_1000_requests_that_are_none_do_no_harm(tmp_path: Path) -> None:
    """The agent answers as before, and has not grown."""
    with running(tmp_path / "root") as agent:
        nonsense(agent, 100, seed=1)
        before = memory_of(agent)

        nonsense(agent, 1_000, seed=2)

        assert agent.ready()
        assert agent.admit("sense", cpu="1").status_code == 201
        assert memory_of(agent) - before < 10 << 20


def test_5000_pods_in_and_out_leave_memory_flat(tmp_path: Path) -> None:
    """What pods took they gave back, the agent's memory too."""
    with running(tmp_path / "root", "--history", "1000") as agent:
        come_and_go(agent, 1_200)
        before = memory_of(agent)

        come_and_go(agent, 5_000)

        assert agent.pods() == {}
        assert memory_of(agent) - before < 4 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    place = tmp_path / "disk"
    place.mkdir()
    if mount is None or umount is None or os.geteuid() != 0:
        pytest.skip("a disk of its own needs root and mount")
    made = subprocess.run(  # noqa: S603 - the system's own
        [mount, "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run([umount, "-l", place], check=True)  # noqa: S603 - the system's own


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Whatever is opened in *directory* from now on can only be read; what is open already does not matter."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    assert mount is not None
    assert umount is not None
    subprocess.run([mount, "--bind", directory, directory], check=True)  # noqa: S603 - the system's own
    try:
        subprocess.run([mount, "-o", "remount,ro,bind", directory], check=True)  # noqa: S603 - the system's own
        yield
    finally:
        subprocess.run([umount, directory], check=True)  # noqa: S603 - the system's own


def test_a_disk_that_is_really_full_stops_admissions_and_nothing_else(disk: Path) -> None:
    """Nothing acknowledged is lost, and with room again all goes on."""
    root = disk / "root"
    promised: list[str] = []
    with running(root, config=ROOMY) as agent:
        (disk / "ballast").write_bytes(b"x" * (60 << 10))
        while (answer := agent.admit(f"pod-{len(promised)}", cpu="1m", memory="1Mi")).status_code == 201:
            promised.append(f"pod-{len(promised)}")
        assert answer.status_code == 503
        assert agent.http.get("/readyz").status_code == 503
        assert list(agent.pods()) == promised
        (disk / "ballast").unlink()
        wait_for(agent.ready)
        assert agent.admit("more", cpu="1m", memory="1Mi").status_code == 201
        agent.kill()
    with running(root, config=ROOMY) as agent:
        assert list(agent.pods()) == [*promised, "more"]


def test_a_disk_that_becomes_read_only_is_waited_for(disk: Path) -> None:
    """Questions are answered meanwhile."""
    root = disk / "root"
    with running(root) as agent:
        assert agent.admit("before", cpu="1").status_code == 201
        with read_only(root):
            refused = agent.admit("during", cpu="1")
            assert refused.status_code == 503
            assert "Read-only file system" in refused.json()["detail"]
            assert list(agent.pods()) == ["before"]
        wait_for(agent.ready)
        assert agent.admit("after", cpu="1").status_code == 201
    with running(root) as agent:
        assert list(agent.pods()) == ["before", "after"]
