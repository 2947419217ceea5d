"""Latency from admission to a running container, and the cost of an idle agent.

The testing runtime runs containers as plain processes, so the figures measure the agent.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.bench_agent import CONFIG, UnixConnection, agent
from bench.harness import Figure

IMAGE = "busybox:1"
MANY, STARTS, ROUNDS = 100, 10, 3
IDLE_SECONDS = 10.0
TICK = os.sysconf("SC_CLK_TCK")


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        root = Path(place)
        (root / "kubelet.json").write_text(json.dumps({**CONFIG, "maxPods": 2 * MANY}))
        options = ("--runtime", "cri", "--runtime-endpoint", str(root / "cri.sock"), "--cgroup-root", "none")
        with _runtime(root), agent(root, *options) as (process, connection):
            starts = sorted(_start(connection, f"one-{number}") for number in range(STARTS))
            yield Figure("from admission to a running container, p50", starts[STARTS // 2], 0.1)
            begun = time.perf_counter()
            for number in range(MANY):
                assert connection.send_json("POST", "/v1/pods", _pod(f"many-{number}")) == 201
            _wait_for(connection, MANY + STARTS)
            yield Figure(f"from admission to running, {MANY} pods", time.perf_counter() - begun, 6.0)
            time.sleep(2)
            used = min(_used(process.pid, IDLE_SECONDS / ROUNDS) for _ in range(ROUNDS))
            yield Figure(f"CPU seconds per second, {MANY + STARTS} idle pods", used, 0.03)


@contextmanager
def _runtime(root: Path) -> Iterator[None]:
    """A runtime with an image."""
    program = [sys.executable, "-m", "alignup.testing.runtime", "--socket", str(root / "cri.sock")]
    command = [*program, "--dir", str(root / "boxes"), "--image", IMAGE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.terminate()


def _pod(name: str) -> dict[str, Any]:
    container = {"name": "app", "image": IMAGE, "command": ["sleep", "1000"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": name},
        "spec": {"containers": [container]},
    }


def _start(connection: UnixConnection, name: str) -> float:
    """Seconds until a pod runs."""
    begun = time.perf_counter()
    assert connection.send_json("POST", "/v1/pods", _pod(name)) == 201
    while _state(connection, name) != "running":
        time.sleep(0.005)
    return time.perf_counter() - begun


def _state(connection: UnixConnection, uid: str) -> str:
    run = json.loads(connection.get(f"/v1/pods/{uid}"))["run"]
    return str(run["containers"][0]["state"]) if run["containers"] else ""


def _wait_for(connection: UnixConnection, count: int) -> None:
    """Wait until *count* pods run."""
    while True:
        pods = json.loads(connection.get("/v1/pods"))["pods"]
        if sum(pod["run"]["phase"] == "Running" for pod in pods) == count:
            return
        time.sleep(0.1)


def _used(pid: int, seconds: float) -> float:
    """The CPU seconds per second of a process."""
    before = _ticks(pid)
    time.sleep(seconds)
    return (_ticks(pid) - before) / TICK / seconds


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
