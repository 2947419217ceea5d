"""Shells complete files, machines, and names from a running agent or cluster."""

import pytest

from tests.agent.agents import running
from tests.cli.commands import in_process
from tests.cli.manifests import pod_manifest
from tests.cli.test_cluster import cluster
from tests.observe.api_objects import running_server

NVIDIA = ("nvidia", "nvidia-packed")


def complete(*words, env=None):
    """What bash gets after *words*, the last of which is incomplete: lines of kind and value."""
    line = " ".join(["alignup", *words])
    asked = {"_ALIGNUP_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    lines = in_process(env={**asked, **(env or {})}).stdout.splitlines()
    return [line for line in lines if line]


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["why", "-f", "exa"], ["file,exa"]),
        (["simulate", "-f", "exa"], ["file,exa"]),
        (["admit", "--filename", "exa"], ["file,exa"]),
        (["cluster", "why", "-f", "exa"], ["file,exa"]),
        (["why", "--config", "exa"], ["file,exa"]),
        (["why", "--pods", "exa"], ["file,exa"]),
        (["why", "--machine", "hos"], ["file,hos"]),
        (["machine", "show", "hos"], ["file,hos"]),
        (["machine", "show", "pac"], ["file,pac", "plain,'pack:2 numa:1 core:8 pu:2'"]),
        (["mach"], ["plain,machine"]),
        (["why", "-o", ""], ["plain,text", "plain,wide", "plain,json", "plain,yaml", "plain,name"]),
        (["why", "--sea"], ["plain,--search"]),
        (["why", "--kubernetes-version", "1.3"], [f"plain,1.{minor}" for minor in range(33, 39)]),
        (["why", "--set", "topologyManagerP"], ["plain,topologyManagerPolicy=", "plain,topologyManagerPolicyOptions="]),
        (
            ["why", "--set", "topologyManagerScope="],
            [f"plain,topologyManagerScope={at}" for at in ("container", "pod")],
        ),
        (["why", "--plugin-rule", "example.com/gpu=n"], [f"plain,example.com/gpu={rule}" for rule in NVIDIA]),
        (["simulate", "--compare", "policy,s"], ["plain,policy,scope"]),
        (["simulate", "--strategy", "blind-l"], ["plain,blind-least-allocated"]),
        (["run", "--option", "full"], ["plain,full-pcpus-only=true"]),
        (["run", "--policy", "r"], ["plain,restricted"]),
    ],
)
def test_files_machines_commands_and_options(words, completions):
    assert complete(*words) == completions


def test_pods_of_the_agent(short_path):
    for name, namespace in (("web", "default"), ("trainer", "ml")):
        (short_path / f"{name}.yaml").write_text(pod_manifest(name, namespace, cpu="1", memory="64Mi"))
    with running(short_path / "agent"):
        env = {"ALIGNUP_AGENT": f"unix:{short_path}/agent/agent.sock"}
        for name in ("web", "trainer"):
            assert in_process("admit", "-f", short_path / f"{name}.yaml", env=env).returncode == 0

        assert complete("release", "", env=env) == ["plain,ml/trainer", "plain,web"]
        assert complete("release", "tr", env=env) == ["plain,trainer"]
        assert complete("release", "--agent", f"unix:{short_path}/agent/agent.sock", "w") == ["plain,web"]


def test_the_script_of_a_shell_asks_for_completions():
    assert "_ALIGNUP_COMPLETE=bash_complete" in in_process("completion", "bash").stdout


def test_without_an_agent_there_are_no_pods(short_path):
    assert complete("release", "", env={"ALIGNUP_AGENT": f"unix:{short_path}/nowhere.sock"}) == []


def test_pods_and_nodes_of_a_cluster(tmp_path):
    with running_server(cluster()) as server:
        server.write_kubeconfig(tmp_path / "config")
        options = ["--kubeconfig", str(tmp_path / "config")]

        assert complete("cluster", "why", *options, "h") == ["plain,huge"]
        assert complete("cluster", "why", *options, "-n", "other", "h") == []
        assert complete("cluster", "nodes", *options, "") == ["plain,a", "plain,b", "plain,c", "plain,d"]


def test_without_a_cluster_there_are_no_names(tmp_path):
    assert complete("cluster", "nodes", "--kubeconfig", str(tmp_path / "missing"), "") == []
