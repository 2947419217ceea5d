"""Run the agent under the restrictions of ``deploy/alignup-agent.service``, with a demanding pod."""
# ruff: noqa: S101, S603

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e import containerd
from e2e.node import remove_cgroups
from e2e.programs import not_installed
from tests.short_paths import short_directory
from tests.systemd_units import settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "alignup-agent.service"
PROGRAMS = ("setpriv", "systemd-analyze")
TIMEOUT = 120  #: seconds

#: Runs as nobody, with disk and memory volumes, an fsGroup, a subPath and a downwardAPI volume.
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: needy
  labels: {app: needy}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  securityContext: {runAsUser: 65534, runAsGroup: 65534, fsGroup: 2000}
  containers:
  - name: app
    image: localhost/busybox:1
    command: [sh, -ec]
    args:
    - |
      grep -c localhost /etc/hosts
      cat /info/labels; echo
      mkdir -m 700 /disk/mine; touch /disk/mine/file /memory/file /part/file
      echo all is well > /dev/termination-log
      grep Cpus_allowed_list /proc/self/status
    resources: {limits: {cpu: 1, memory: 64Mi}}
    volumeMounts:
    - {name: disk, mountPath: /disk}
    - {name: memory, mountPath: /memory}
    - {name: disk, mountPath: /part, subPath: part}
    - {name: info, mountPath: /info}
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - name: info
    downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
"""


def missing() -> str | None:
    return not_installed(PROGRAMS) or containerd.missing()


pytestmark = pytest.mark.skipif(bool(missing()), reason=str(missing()))


class Service:
    """The agent as the unit starts it, with a socket in place of systemd."""

    def __init__(self, place: Path, endpoint: str, cgroup_root: str) -> None:
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
            "unix:///run/containerd/containerd.sock": endpoint,
        }
        words = shlex.split(settings(UNIT)["ExecStart"])
        command = [instead.get(word, word) for word in words] + ["--root-dir", str(place / "root")]
        command += ["--cgroup-root", cgroup_root]
        env = {**os.environ, "NOTIFY_SOCKET": str(place / "notify"), "WATCHDOG_USEC": "900000"}
        self.process = subprocess.Popen([sys.executable, "-m", "e2e.confined", str(UNIT), *command], env=env, cwd=ROOT)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=TIMEOUT)
        self.listener.close()

    def notification(self) -> str:
        """The next notification for systemd."""
        return self.listener.recv(4096).decode()

    def alignup(self, *words: str) -> str:
        agent = f"--agent=unix:{self.place}/root/agent.sock"
        command = [sys.executable, "-m", "alignup", *words, agent]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        return done.stdout + done.stderr

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < until, self.alignup("ps", "-o", "wide")
            time.sleep(0.3)


@pytest.fixture
def service() -> Iterator[Service]:
    root = f"alignup-e2e-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        place = stack.enter_context(short_directory())
        stack.callback(remove_cgroups, root)
        runtime = stack.enter_context(containerd.containerd(place / "c"))
        made = Service(place, runtime.endpoint, root)
        stack.callback(made.close)
        yield made


def test_a_confined_agent_runs_a_pod_that_needs_all_its_privileges(service: Service) -> None:
    assert service.notification().startswith("READY=1\n")
    assert service.notification() == "WATCHDOG=1"
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{service.process.pid}/status").read_text().splitlines())
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert int(status["CapEff"], 16).bit_count() == len(settings(UNIT)["CapabilityBoundingSet"].split())

    (service.manifests / "needy.yaml").write_text(POD)
    service.wait_until(lambda: "Completed" in service.alignup("ps"))

    assert re.search(r'^app="needy"\nCpus_allowed_list:\t\d+$', service.alignup("logs", "needy"), re.MULTILINE)
    assert "all is well" in service.alignup("ps", "-o", "json")

    (service.manifests / "needy.yaml").unlink()
    service.wait_until(lambda: "No pods found." in service.alignup("ps"))

    assert not any((service.place / "root" / "pods").iterdir())
    assert not any((service.place / "root" / "logs").iterdir())
