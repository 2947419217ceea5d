"""Whether a kubelet is at work in a directory: by its sockets, and by its process."""

import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from alignup.doctor.live_kubelet import find_live_kubelets

SLEEP = "import sys, time; print(flush=True); time.sleep(60)"


@pytest.fixture
def directory(tmp_path):
    """A directory with so long a name that no socket in it can be named in full."""
    found = tmp_path / ("d" * 100)
    for name in ("device-plugins", "pod-resources"):
        (found / name).mkdir(parents=True)
    return found


@contextmanager
def listening(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as served:
        served.bind("kubelet.sock")
        served.listen()
        yield


@contextmanager
def process(*arguments, cwd=None):
    """A process that goes by the name of kubelet."""
    command = ["/usr/bin/kubelet", "-c", SLEEP, *arguments]
    with subprocess.Popen(command, executable=sys.executable, cwd=cwd, stdout=subprocess.PIPE) as running:  # noqa: S603
        assert running.stdout
        running.stdout.readline()
        try:
            yield running.pid
        finally:
            running.kill()


def test_a_directory_nobody_uses(directory):
    assert find_live_kubelets(directory) == ()


def test_a_directory_that_is_not_there_is_used_by_nobody(tmp_path):
    assert find_live_kubelets(tmp_path / "none") == ()


@pytest.mark.parametrize("name", ["device-plugins", "pod-resources"])
def test_a_socket_that_answers(directory, name, monkeypatch):
    with listening(directory / name, monkeypatch):
        assert find_live_kubelets(directory) == (f"{directory / name / 'kubelet.sock'} answers",)


def test_a_socket_that_was_left_behind(directory, monkeypatch):
    with listening(directory / "device-plugins", monkeypatch):
        pass

    assert (directory / "device-plugins" / "kubelet.sock").exists()
    assert find_live_kubelets(directory) == ()


@pytest.mark.parametrize("spelled", ["--root-dir={}", "--root-dir {}", "-root-dir={}", "--root-dir=/x --root-dir={}"])
def test_a_kubelet_whose_directory_it_is(directory, spelled):
    with process(*spelled.format(directory).split()) as pid:
        assert find_live_kubelets(directory) == (f"process {pid} is a kubelet with --root-dir {directory}",)


def test_a_kubelet_that_was_told_from_where_it_stood(directory):
    with process("--root-dir", directory.name, cwd=directory.parent) as pid:
        assert find_live_kubelets(directory) == (f"process {pid} is a kubelet with --root-dir {directory.name}",)


def test_a_kubelet_elsewhere(directory):
    with process("--v=2"):
        assert find_live_kubelets(directory) == ()


def test_a_name_that_leads_to_the_same_directory(directory, tmp_path):
    (tmp_path / "link").symlink_to(directory)

    with process(f"--root-dir={directory}") as pid:
        assert find_live_kubelets(tmp_path / "link") == (f"process {pid} is a kubelet with --root-dir {directory}",)


def test_processes_that_end_or_are_not_ours_to_look_at(directory, tmp_path):
    proc = tmp_path / "proc"
    (proc / "1").mkdir(parents=True)
    (proc / "2").mkdir()
    (proc / "2" / "cmdline").write_bytes(f"kubelet\0--root-dir={directory}\0".encode())

    assert find_live_kubelets(directory, proc=proc) == (f"process 2 is a kubelet with --root-dir {directory}",)


def test_what_cannot_be_asked_counts_as_used(directory):
    (directory / "device-plugins").rmdir()
    (directory / "device-plugins").touch()

    assert find_live_kubelets(directory) == (
        f"{directory / 'device-plugins' / 'kubelet.sock'} cannot be asked: Not a directory",
    )
