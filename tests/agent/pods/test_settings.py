"""An agent logs the fields of a kubelet configuration that it ignores."""

import pytest

from tests.agent.agents import arguments
from tests.agent.pods.rig import ROOMY, rig
from tests.cli.commands import alignup
from tests.short_paths import short_directory


def test_ignored_configuration_fields_are_logged_at_startup():
    with short_directory() as place, rig(place) as made:
        agent = made.agent(config={**ROOMY, "seccompDefault": True, "clusterDNS": ["10.0.0.10"], "podLogsDir": "/x"})
        agent.stop()

        notes = [line["detail"] for line in agent.log() if line["event"] == "note"]

    assert [note.partition(": ")[2] for note in notes] == ["the agent ignores podLogsDir (use --log-dir), clusterDNS"]


def test_an_agent_without_a_runtime_logs_no_ignored_fields(tmp_path):
    words = arguments(tmp_path / "root", "--export", tmp_path / "export", config={**ROOMY, "clusterDNS": ["10.0.0.10"]})

    done = alignup(*words)

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
    done = alignup(*arguments(tmp_path / "root", "--runtime", "cri", config={**ROOMY, **fields}))

    assert done.returncode == 2
    assert what in done.stderr
    assert "root.config.json" in done.stderr


@pytest.mark.parametrize("change", ["seccompDefault=true", "cpuCFSQuota=false", "podPidsLimit=100"])
def test_set_overrides_a_single_field(tmp_path, change):
    words = arguments(tmp_path / "root", "--set", change, "--runtime", "cri", "--runtime-endpoint", tmp_path / "none")

    done = alignup(*words)

    assert done.returncode == 1
    assert "the container runtime failed to get its version:" in done.stderr
