"""Faults of an agent: a full disk, a broken one, and a plugin process that flaps.

``tests/agent/test_faults.py`` kills agents, and sends them invalid requests; ``make soak`` repeats that hundreds of
times. The test of a full disk needs root and is skipped without it.
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
from tests.agent.load import check_granted, check_nothing_twice, memory_of
from tests.agent.plugin_rig import GPUS, wait_for_devices
from tests.deadlines import wait_for
from tests.testing.processes import plugin_process

ROOMY = {**CONFIG, "maxPods": 1000}
FLAPS = 100
TIMEOUT = 300.0  #: seconds


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


def test_a_plugin_that_flaps_a_hundred_times_is_harmless(tmp_path: Path) -> None:
    """Pods are admitted while it is registered, wait while it is not, and keep their devices."""
    root, script = tmp_path / "root", tmp_path / "script"
    script.write_text('{"after": 0.03, "do": "restart"}\n{"after": 0.03, "do": "register"}\n' * FLAPS)
    with running(root, "--on-misfit", "wait", devices="") as agent:
        with plugin_process(root / "device-plugins", *GPUS, "--preferred", "lowest", "--script", str(script)):
            wait_for_devices(agent)
            before = memory_of(agent)
            for number in range(4):
                assert agent.admit(f"pod-{number}", cpu="100m", gpu="1").status_code in {201, 202}
            wait_for(lambda: _flaps(agent.http.get("/metrics").text) > FLAPS, seconds=TIMEOUT)
            wait_for(lambda: all(pod["status"] == "admitted" for pod in agent.pods().values()), seconds=TIMEOUT)
            pods = agent.pods()
            check_nothing_twice(pods)
            check_granted(pods)
            assert memory_of(agent) - before < 20 << 20
        wait_for_devices(agent, 0)
        assert agent.pods() == pods
    with running(root, "--on-misfit", "wait", devices="") as agent:
        assert {uid: pod["grants"] for uid, pod in agent.pods().items()} == {
            uid: pod["grants"] for uid, pod in pods.items()
        }


def _flaps(metrics: str) -> int:
    """Return the number of registrations."""
    name = 'kubelet_device_plugin_registration_total{resource_name="example.com/gpu"}'
    return next((int(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name)), 0)
