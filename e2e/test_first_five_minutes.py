"""The commands of docs/first-five-minutes.md lead from a rejected pod on a real cluster to the reason."""
# ruff: noqa: S101, S607

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from alignup.machines import load
from e2e import cluster_guest, control_plane
from e2e.api import until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW
from e2e.guest_kubelet import IMAGE

PAGE = Path(__file__).parents[1] / "docs" / "first-five-minutes.md"
PODS = "/api/v1/namespaces/default/pods"
SECONDS = 300  #: the first five minutes
AMOUNTS = {"cpu": "3", "memory": "16Mi"}  #: no NUMA node of the guest has three CPUs
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "nodeName": "narrow",
        "containers": [{"name": "app", "image": IMAGE, "resources": {"limits": AMOUNTS, "requests": AMOUNTS}}],
    },
}


def commands() -> str:
    """Return all commands of the page as one script that stops when one of them fails."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    # The exit code 1 of alignup why is its answer: no.
    return "set -e\n" + "".join(
        block if "alignup why" not in block else f"{block.rstrip()} || test $? -eq 1\n" for block in blocks
    )


def test_the_commands_lead_to_the_reason(tmp_path: Path) -> None:
    if absent := cluster_guest.missing() or control_plane.missing(["kubectl"]):
        pytest.skip(absent)
    work = tmp_path / "work"
    work.mkdir()
    with ClusterBed(tmp_path, {"narrow": NARROW}) as bed:
        bed.api.request("POST", PODS, POD)
        until("the pod is rejected", lambda: bed.api.request("GET", f"{PODS}/web")["status"].get("phase") == "Failed")
        programs = [str(Path(sys.executable).parent), str(control_plane.program("kubectl").parent)]
        env = {
            **os.environ,
            "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
            "KUBECONFIG": str(bed.plane.directory / "admin.kubeconfig"),
        }
        script = commands()
        done = subprocess.run(
            ["sh", "-s"], input=script, cwd=work, env=env, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        left = [pod["metadata"]["name"] for pod in bed.api.request("GET", PODS)["items"]]

    assert done.returncode == 0, done.stderr
    assert "TopologyAffinityError" in done.stdout
    assert "Pod default/web is rejected: TopologyAffinityError" in done.stdout
    assert "What would admit it" in done.stdout
    assert "Traceback" not in done.stderr
    assert left == ["web"]
    machine = load(work / "machine.tar.gz")
    assert (len(machine.nodes), len(machine.cpus)) == (4, 8)
