"""Hint providers of other packages, by entry point: ``--provider NAME`` of commands and of the agent."""

import json

import pytest

from tests.agent.agents import running
from tests.cli.commands import in_process

MODULE = """
import runpy
CacheWays = runpy.run_path("examples/own_provider.py")["CacheWays"]

class StoredWays(CacheWays):
    def to_json(self, ledger):
        return [[*holder, *ways] for holder, ways in ledger.items()]

    def from_json(self, data):
        return {(uid, name): (node, first, count) for uid, name, node, first, count in data}

def ways(machine):
    return StoredWays(nodes=tuple(node.id for node in machine.nodes))

def broken(machine):
    raise RuntimeError("no resctrl here")
"""
POINTS = "[alignup.providers]\nways = ways_package:ways\nbroken = ways_package:broken\nnone = builtins:str\n"
POD = """apiVersion: v1
kind: Pod
metadata: {name: %s}
spec: {containers: [{name: app, resources: {limits: {cpu: 2, memory: 1Gi, example.com/cache-ways: %d}}}]}
"""
HOST = ("--machine", "pack:2 numa:1(memory=16GiB) core:4 pu:2", "--set", "topologyManagerPolicy=single-numa-node")


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """An installed package with three entry points."""
    (tmp_path / "ways_package.py").write_text(MODULE)
    metadata = tmp_path / "ways_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ways-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def why(directory, ways, *words):
    (directory / "pod.yaml").write_text(POD % ("web", ways))
    return in_process("why", "-f", directory / "pod.yaml", *HOST, "--ignore-missing-devices", *words)


def test_its_hints_and_allocations_count(tmp_path):
    admitted = why(tmp_path, 8, "--provider", "ways", "-o", "json")
    rejected = why(tmp_path, 12, "--provider", "ways")

    (answer,) = json.loads(admitted.stdout)["answers"]
    assert answer["decision"]["placements"][0]["given"]["cache"] == {"example.com/cache-ways": "0-7 of node 0"}
    assert rejected.returncode == 1
    assert "example.com/cache-ways" in rejected.stdout


def test_without_the_option_it_does_not_count(tmp_path):
    assert why(tmp_path, 12).returncode == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "no installed package has a provider absent"),
        ("broken", "RuntimeError: no resctrl here"),
        ("none", "it is not a provider"),
    ],
)
def test_what_cannot_be_used_is_an_error_in_the_input(tmp_path, name, message):
    run = why(tmp_path, 1, "--provider", name)

    assert run.returncode == 2
    assert message in run.stderr


def test_the_agent_stores_what_it_allocates(short_path, tmp_path):
    env = {"ALIGNUP_AGENT": f"unix:{short_path}/agent/agent.sock"}
    allocated = []
    for name in ("first", "second"):
        (tmp_path / "pod.yaml").write_text(POD % (name, 8))
        with running(short_path / "agent", "--provider", "ways", "--set", HOST[-1], machine=HOST[1]):
            run = in_process("admit", "-f", tmp_path / "pod.yaml", "-o", "json", env=env)
        (admission,) = json.loads(run.stdout)["admissions"]
        allocated.append(admission["decision"]["placements"][0]["given"]["cache"]["example.com/cache-ways"])

    assert allocated == ["0-7 of node 0", "0-7 of node 1"]  # the second agent knows what the first one allocated
