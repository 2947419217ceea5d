"""docs/cluster.md, line by line, on a real cluster that runs our container image."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import cluster_guest, cluster_images, control_plane
from e2e.api import until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW, WIDE
from e2e.marks import needs
from e2e.programs import not_installed, user_environment
from tests.console_runner import ROOT, ConsoleCommand, difference, parse_commands

pytestmark = needs(
    cluster_guest.missing() or control_plane.missing(["kubectl"]) or not_installed(["apt-get", "dpkg-deb"])
)

PAGE = ROOT / "docs" / "cluster.md"
BLOCK = "console-cluster"  #: the language of blocks that need a cluster


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBed]:
    images = cluster_images.archives(tmp_path_factory.mktemp("images"))
    with ClusterBed(tmp_path_factory.mktemp("cluster"), {"narrow": NARROW, "wide": WIDE}, images=images) as cluster:
        cluster.plane.start_scheduler()
        yield cluster


def test_a_new_user_can_follow_the_page(bed: ClusterBed) -> None:
    for command in commands(PAGE):
        follow(bed, command)


def commands(page: Path) -> list[ConsoleCommand]:
    """Return the commands of a page that need a cluster."""
    text = page.read_text("utf-8")
    blocks = re.findall(rf"^```{BLOCK}\n.*?^```$", text, re.MULTILINE | re.DOTALL)
    documented = parse_commands("\n".join(block.replace(BLOCK, "console", 1) for block in blocks))
    assert documented, f"{page} has no blocks of {BLOCK}"
    return documented


def follow(bed: ClusterBed, command: ConsoleCommand) -> None:
    """Run a command; one that only looks is repeated until the cluster has come so far."""
    begun = time.monotonic()
    shown = [""]

    def as_documented() -> bool:
        code, output = run(bed, command.command)
        shown[0] = f"$ {command.command}\n{output}exit code {code}; {difference(output, command.output)}"
        return not code and not difference(output, command.output)

    if command.command.startswith(("kubectl get", "kubectl alignup")):
        until(command.command, as_documented, detail=lambda: f"{shown[0]}\n{state(bed)}")
    else:
        assert as_documented(), f"{shown[0]}\n{state(bed)}"
    print(f"{time.monotonic() - begun:5.1f} s  {command.command}", flush=True)


def run(bed: ClusterBed, command: str) -> tuple[int, str]:
    """Run a command in the repository, as a user with kubectl and the plugin does."""
    kubectl = control_plane.program("kubectl").parent
    environment = user_environment(bed.plane.directory / "admin.kubeconfig", kubectl)
    done = subprocess.run(  # noqa: S602
        command, shell=True, cwd=ROOT, env=environment, text=True, capture_output=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def state(bed: ClusterBed) -> str:
    """Return what helps to find out why a command failed."""
    words = ("get pods -A -o wide", "get events -A", "-n alignup describe pods", "get hoststates")
    return "\n".join(run(bed, f"kubectl {subcommand}")[1][-4000:] for subcommand in words)
