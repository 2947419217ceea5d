"""An agent logs the fields of a kubelet configuration that it ignores."""

import pytest

from tests.agent import agents
from tests.agent.agents import CONFIG, arguments
from tests.agent.pods.rig import rig
from tests.cli.commands import in_process


def test_ignored_configuration_fields_are_logged_at_startup(tmp_path):
    config = {**CONFIG, "seccompDefault": True, "clusterDNS": ["10.0.0.10"], "podLogsDir": "/x"}
    with rig(tmp_path) as made:
        runtime = ("--runtime", "cri", "--runtime-endpoint", tmp_path / "cri.sock", "--cgroup-root", "none")
        with agents.running(made.root, *runtime, config=config, devices="") as agent:
            notes = [line["detail"] for line in agent.log() if line["event"] == "note"]

    assert [note.partition(": ")[2] for note in notes] == ["the agent ignores podLogsDir (use --log-dir), clusterDNS"]


def test_an_agent_without_a_runtime_logs_no_ignored_fields(tmp_path):
    words = arguments(
        tmp_path / "root", "--export", tmp_path / "export", config={**CONFIG, "clusterDNS": ["10.0.0.10"]}
    )

    done = in_process(*words)

    assert done.returncode == 0
    assert "ignores" not in done.stderr


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        pytest.param(
            {"containerLogMaxFiles": 1}, "containerLogMaxFiles must be greater than 1", id="too few log files"
        ),
        pytest.param(
            {"containerLogMaxSize": "lots"}, 'failed to parse container log max size "lots"', id="an invalid size"
        ),
    ],
)
def test_an_invalid_configuration_is_rejected(tmp_path, fields, what):
    done = in_process(*arguments(tmp_path / "root", "--runtime", "cri", config={**CONFIG, **fields}))

    assert done.returncode == 2
    assert what in done.stderr
    assert "root.config.json" in done.stderr


@pytest.mark.parametrize("change", ["seccompDefault=true", "cpuCFSQuota=false", "podPidsLimit=100"])
def test_set_overrides_a_single_field(tmp_path, change):
    words = arguments(tmp_path / "root", "--set", change, "--runtime", "cri", "--runtime-endpoint", tmp_path / "none")

    done = in_process(*words)

    assert done.returncode == 1
    assert "the container runtime failed to get its version:" in done.stderr
