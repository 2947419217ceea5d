"""Long fault tests of an agent: hundreds of kills, full and broken disks, invalid requests, thousands of pods.

``tests/agent/test_faults.py`` has short versions. The test of a full disk needs root and is skipped without it.
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.agents import CONFIG, running
from tests.agent.load import come_and_go, kill_again_and_again, memory_of, nonsense
from tests.deadlines import wait_for
from tests.effort import SEED

KILLS = 200
ROOMY = {**CONFIG, "maxPods": 1000}


def test_no_admission_is_lost_in_200_kills_under_load(tmp_path: Path) -> None:
    """After each kill, every acknowledged placement exists, nothing is partial, and nothing is allocated twice."""
    assert kill_again_and_again(tmp_path / "root", kills=KILLS, seed=SEED) > 1_000


def test_1000_invalid_requests_are_harmless(tmp_path: Path) -> None:
    """The agent serves as before, and its memory has not grown."""
    with running(tmp_path / "root") as agent:
        nonsense(agent, 100, seed=1)
        before = memory_of(agent)

        nonsense(agent, 1_000, seed=2)

        assert agent.ready()
        assert agent.admit("sense", cpu="1").status_code == 201
        assert memory_of(agent) - before < 10 << 20


def test_memory_is_constant_over_5000_pods(tmp_path: Path) -> None:
    with running(tmp_path / "root", "--history", "1000") as agent:
        come_and_go(agent, 1_200)
        before = memory_of(agent)

        come_and_go(agent, 5_000)

        assert agent.pods() == {}
        assert memory_of(agent) - before < 4 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    place = tmp_path / "disk"
    place.mkdir()
    if mount is None or umount is None or os.geteuid() != 0:
        pytest.skip("mounting a disk needs root: run as root")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a disk: {mounted.stderr.strip()}")
    yield place
    subprocess.run([umount, "-l", place], check=True)


@contextmanager
def unwritable_files(process: int) -> Iterator[None]:
    """Let every write of a process to a file fail, also to those that it has open, as on a broken disk.

    A file system cannot be made read-only while a program has files on it open for writing, as the agent has.
    """
    limits = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_stops_only_admissions(disk: Path) -> None:
    """No acknowledged pod is lost, and admissions resume with free space."""
    root = disk / "root"
    acknowledged: list[str] = []
    with running(root, config=ROOMY) as agent:
        (disk / "ballast").write_bytes(b"x" * (3 << 20))
        while (answer := agent.admit(f"pod-{len(acknowledged)}", cpu="1m", memory="1Mi")).status_code == 201:
            acknowledged.append(f"pod-{len(acknowledged)}")
        assert answer.status_code == 503
        assert agent.http.get("/readyz").status_code == 503
        assert list(agent.pods()) == acknowledged
        (disk / "ballast").unlink()
        wait_for(agent.ready)
        assert agent.admit("more", cpu="1m", memory="1Mi").status_code == 201
        agent.kill()
    with running(root, config=ROOMY) as agent:
        assert list(agent.pods()) == [*acknowledged, "more"]


def test_admissions_resume_when_files_can_be_written_again(tmp_path: Path) -> None:
    """Meanwhile the agent serves reads."""
    root = tmp_path / "root"
    with running(root) as agent:
        assert agent.admit("before", cpu="1").status_code == 201
        with unwritable_files(agent.process.pid or 0):
            rejected = agent.admit("during", cpu="1")
            assert rejected.status_code == 503
            assert "alignup.sqlite: the state cannot be written: disk I/O error" in rejected.json()["detail"]
            assert list(agent.pods()) == ["before"]
        wait_for(agent.ready)
        assert agent.admit("after", cpu="1").status_code == 201
    with running(root) as agent:
        assert list(agent.pods()) == ["before", "after"]
