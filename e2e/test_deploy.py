"""Run the agent under the restrictions of ``deploy/alignup-agent.service``."""

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.marks import needs
from e2e.programs import ROOT, not_installed, run_alignup
from tests.deadlines import wait_for
from tests.short_paths import short_directory
from tests.systemd_units import settings

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "alignup-agent.service"
PROGRAMS = ("setpriv", "systemd-analyze")
TIMEOUT = 120  #: seconds

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 1, memory: 64Mi}}
"""


def missing() -> str | None:
    if os.geteuid() != 0:
        return "capabilities can only be dropped by root: run as root"
    return not_installed(PROGRAMS)


pytestmark = needs(missing())


class Service:
    """The agent as the unit starts it, with a socket in place of systemd."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.manifests = place / "manifests"
        self.manifests.mkdir()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.listener.bind(str(place / "notify"))
        self.listener.settimeout(TIMEOUT)
        instead = {
            "/opt/alignup/bin/alignup": f"{Path(sys.executable).parent}/alignup",
            "/etc/alignup/kubelet.yaml": str(DEPLOY / "kubelet.yaml"),
            "/etc/alignup/manifests": str(self.manifests),
        }
        words = shlex.split(settings(UNIT)["ExecStart"])
        command = [instead.get(word, word) for word in words] + ["--root-dir", str(place / "root")]
        env = {**os.environ, "NOTIFY_SOCKET": str(place / "notify"), "WATCHDOG_USEC": "900000"}
        self.process = subprocess.Popen([sys.executable, "-m", "e2e.confined", str(UNIT), *command], env=env, cwd=ROOT)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=TIMEOUT)
        self.listener.close()

    def notification(self) -> str:
        """Return the next notification for systemd."""
        return self.listener.recv(4096).decode()

    def alignup(self, *words: str) -> str:
        done = run_alignup(*words, f"--agent=unix:{self.place}/root/agent.sock")
        return done.stdout + done.stderr

    def wait_shown(self, text: str) -> None:
        """Wait until ``alignup ps`` prints *text*."""
        describe = lambda: self.alignup("ps", "-o", "wide")  # noqa: E731
        wait_for(lambda: text in self.alignup("ps"), describe=describe, seconds=TIMEOUT, interval=0.3)


@pytest.fixture
def service() -> Iterator[Service]:
    with ExitStack() as stack:
        running = Service(stack.enter_context(short_directory()))
        stack.callback(running.close)
        yield running


def test_a_confined_agent_admits_and_releases_a_pod(service: Service) -> None:
    assert service.notification().startswith("READY=1\n")
    assert service.notification() == "WATCHDOG=1"
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{service.process.pid}/status").read_text().splitlines())
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert int(status["CapEff"], 16).bit_count() == len(settings(UNIT)["CapabilityBoundingSet"].split())

    (service.manifests / "web.yaml").write_text(POD)
    service.wait_shown("default/web  admitted")

    (service.manifests / "web.yaml").unlink()
    service.wait_shown("No pods found.")
