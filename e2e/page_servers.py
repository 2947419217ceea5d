"""What is tested in a browser and pictured: an agent with the pods of the example, a cluster service, and reports."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import yaml

from alignup.web.address import UnixAddress
from alignup.web.agent_client import AgentClient
from e2e.programs import ROOT, run_alignup
from tests.deadlines import wait_for
from tests.short_paths import short_directory

NODE = ROOT / "examples" / "node"
_EXAMPLE = "--machine examples/node/machine.yaml --config examples/node/kubelet.yaml"
_REPORTS = {
    "comparison": f"simulate --generate mixed --count 400 {_EXAMPLE} --compare policy,scope",
    "cluster": "simulate --cluster examples/fleet/training.yaml --generate gangs --count 700 --load 1.2 "
    "--strategy alignup,blind-least-allocated,blind-most-allocated",
    "sweep": "sweep examples/fleet/sweep.yaml --engine serial",
}


@dataclass(frozen=True)
class RunningAgent:
    client: AgentClient

    def link(self) -> str:
        return str(self.client.post("/v1/sign-in-links")["url"])

    def admit(self, name: str, **limits: str) -> None:
        container = {"name": "app", "resources": {"limits": limits}}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
        self.client.admit(manifest)

    def admit_examples(self) -> None:
        """Admit the pods of the example; the last of them has to wait."""
        for pod in yaml.safe_load((NODE / "running.yaml").read_text())["items"]:
            self.client.admit(pod)
        template = yaml.safe_load((NODE / "trainer.yaml").read_text())["spec"]["template"]
        metadata = {"name": "trainer-0", "namespace": "ml"}
        self.client.admit({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})

    def uid(self, name: str) -> str:
        return next(str(pod["uid"]) for pod in self.client.pods() if pod["name"] == name)

    def decision(self, outcome: str) -> int:
        """Return the latest decision with *outcome*."""
        return int(self.client.get("/v1/decisions", outcome=outcome)["decisions"][0]["id"])


@contextmanager
def running_agent(machine: Path = NODE / "machine.yaml", *more: str) -> Iterator[RunningAgent]:
    with short_directory() as place:
        log = place / "log"
        words = ["agent", "--root-dir", place / "a", "--machine", machine, "--config", NODE / "kubelet.yaml"]
        words += ["--on-misfit", "wait", "--web-listen", "127.0.0.1:0", *more]
        with log.open("wb") as stream:
            process = subprocess.Popen([sys.executable, "-m", "alignup", *map(str, words)], stderr=stream)
        try:
            wait_for(lambda: b'"listening"' in log.read_bytes())
            yield RunningAgent(AgentClient(UnixAddress(place / "a" / "agent.sock")))
        finally:
            process.terminate()
            process.wait()


@dataclass(frozen=True)
class RunningCluster:
    address: str  #: of the pages
    commands: IO[str]

    def send(self, command: str) -> None:
        """Let something happen; see ``e2e.served_cluster``."""
        self.commands.write(f"{command}\n")
        self.commands.flush()


@contextmanager
def running_cluster(nodes: int) -> Iterator[RunningCluster]:
    """Run a cluster service on simulated nodes."""
    words = [sys.executable, "-m", "e2e.served_cluster", str(nodes)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield RunningCluster(process.stdout.readline().strip(), process.stdin)
        process.stdin.close()


def write_reports(directory: Path) -> dict[str, Path]:
    """Write a report of each kind to *directory*, and return them by kind: comparison, cluster and sweep."""
    reports = {kind: directory / f"{kind}.html" for kind in _REPORTS}
    for kind, words in _REPORTS.items():
        results = ["--results", str(directory / "sweep.csv")] if kind == "sweep" else []
        run_alignup(*words.split(), *results, "--html", reports[kind]).check_returncode()
    return reports
