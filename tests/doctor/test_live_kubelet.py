"""Detect a kubelet that is running in a directory, by its sockets and by its process."""

import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from alignup.doctor.diagnosis import find_live_kubelets

#: Reports that it runs, and waits for the end of its input.
WAIT = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def directory(tmp_path):
    """A directory whose path is too long for a socket address."""
    path = tmp_path / ("d" * 100)
    for name in ("device-plugins", "pod-resources"):
        (path / name).mkdir(parents=True)
    return path


@contextmanager
def listening(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as served:
        served.bind("kubelet.sock")
        served.listen()
        yield


@contextmanager
def process(*arguments, cwd=None):
    """A process named kubelet."""
    command = ["/usr/bin/kubelet", "-S", "-c", WAIT, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, executable=sys.executable, cwd=cwd, stdin=pipe, stdout=pipe) as running:  # noqa: S603
        try:
            assert running.stdout
            running.stdout.readline()
            yield running.pid
        finally:
            running.kill()


def test_an_unused_directory_and_a_missing_one(directory, tmp_path):
    with process("--v=2"):  # a kubelet with another root directory
        assert find_live_kubelets(directory) == ()
        assert find_live_kubelets(tmp_path / "none") == ()


@pytest.mark.parametrize("name", ["device-plugins", "pod-resources"])
def test_a_socket_with_a_listener(directory, name, monkeypatch):
    with listening(directory / name, monkeypatch):
        assert find_live_kubelets(directory) == (f"{directory / name / 'kubelet.sock'} accepts connections",)


def test_a_stale_socket(directory, monkeypatch):
    with listening(directory / "device-plugins", monkeypatch):
        pass

    assert (directory / "device-plugins" / "kubelet.sock").exists()
    assert find_live_kubelets(directory) == ()


@pytest.mark.parametrize("spelled", ["--root-dir={}", "--root-dir {}", "-root-dir={}", "--root-dir=/x --root-dir={}"])
def test_a_kubelet_process_with_this_root_dir(directory, spelled):
    with process(*spelled.format(directory).split()) as pid:
        assert find_live_kubelets(directory) == (f"process {pid} is a kubelet with --root-dir {directory}",)


def test_a_kubelet_with_a_relative_root_dir(directory):
    with process("--root-dir", directory.name, cwd=directory.parent) as pid:
        assert find_live_kubelets(directory) == (f"process {pid} is a kubelet with --root-dir {directory.name}",)


def test_a_link_to_the_directory(directory, tmp_path):
    (tmp_path / "link").symlink_to(directory)

    with process(f"--root-dir={directory}") as pid:
        assert find_live_kubelets(tmp_path / "link") == (f"process {pid} is a kubelet with --root-dir {directory}",)


def test_inaccessible_processes(directory, tmp_path):
    proc = tmp_path / "proc"
    (proc / "1").mkdir(parents=True)
    (proc / "2").mkdir()
    (proc / "2" / "cmdline").write_bytes(f"kubelet\0--root-dir={directory}\0".encode())

    assert find_live_kubelets(directory, proc=proc) == (f"process 2 is a kubelet with --root-dir {directory}",)


def test_an_inaccessible_socket_counts_as_used(directory):
    (directory / "device-plugins").rmdir()
    (directory / "device-plugins").touch()

    assert find_live_kubelets(directory) == (
        f"{directory / 'device-plugins' / 'kubelet.sock'} cannot be checked: Not a directory",
    )
