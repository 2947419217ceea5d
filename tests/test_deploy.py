"""What ``deploy/`` holds can be used as it is: options there are, lines systemd knows, a configuration that starts."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from alignup.cli.agent import command
from tests.cli.commands import inside
from tests.consoles import ROOT
from tests.units import lines, settings

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "alignup-agent.service"
DROP_IN = DEPLOY / "admission.conf"

STARTING = {
    *("ExecStart", "Type", "WatchdogSec", "Restart", "RestartSec", "RestartPreventExitStatus", "KillMode"),
    *("TimeoutStopSec", "StateDirectory", "StateDirectoryMode", "ConfigurationDirectory", "UMask"),
    *("OOMScoreAdjust", "LimitNOFILE", "TasksMax"),
}
#: What leaves a service the mounts of the host. ``e2e/test_deploy.py`` runs an agent under these.
HELD = {
    *("CapabilityBoundingSet", "NoNewPrivileges", "RestrictNamespaces", "MemoryDenyWriteExecute", "RestrictRealtime"),
    *("LockPersonality", "RestrictAddressFamilies", "SystemCallArchitectures", "SystemCallFilter"),
    *("SystemCallErrorNumber",),
}
#: What gives a service mounts of its own, or forbids the bits of volumes; fine for one that runs no pods.
APART = {
    *("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectProc", "ProtectControlGroups"),
    *("ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "RestrictSUIDSGID"),
}


def started(unit: Path) -> list[str]:
    """The words of the command that is started."""
    return shlex.split(settings(unit)["ExecStart"])


@pytest.mark.parametrize("unit", [UNIT, DROP_IN], ids=["that runs pods", "that decides only"])
def test_the_agent_takes_the_options_of_the_unit(unit):
    program, name, *words = started(unit)

    context = command.make_context(name, words)

    assert (program, name) == ("/opt/alignup/bin/alignup", "agent")
    assert context.params["runtime"] == ("cri" if unit is UNIT else "none")


def test_an_option_that_does_not_exist_would_be_noticed():
    with pytest.raises(click.NoSuchOption, match="--runtimes"):
        command.make_context("agent", ["--runtimes", "cri"])


def test_a_unit_that_runs_pods_has_the_mounts_of_the_host():
    names = {name for name, _ in lines(UNIT)}

    assert names == STARTING | HELD


def test_one_that_decides_only_is_held_tighter():
    said = settings(DROP_IN)

    assert APART <= said.keys() <= APART | {"ExecStart", "CapabilityBoundingSet", "SystemCallFilter"}
    assert said["CapabilityBoundingSet"] == ""
    assert ("ExecStart", "") in lines(DROP_IN), "the command of the unit is taken back first"


def test_stopping_the_agent_leaves_containers_alone_and_wrong_options_end_it():
    said = settings(UNIT)

    assert said["KillMode"] == "process"
    assert (said["Restart"], said["RestartPreventExitStatus"]) == ("always", "2")
    assert (said["Type"], said["WatchdogSec"]) == ("notify", "60")


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param("numa:1(memory=4GiB) core:2 pu:1", id="a small machine"),
        pytest.param("pack:2 numa:2(memory=32GiB) core:8 pu:2", id="four NUMA nodes"),
        pytest.param(str(ROOT / "examples" / "node" / "machine.yaml"), id="two NUMA nodes with devices"),
    ],
)
def test_the_configuration_starts_on(machine):
    done = inside("doctor", "--config", DEPLOY / "kubelet.yaml", "--machine", machine)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "This kubelet starts, and behaves." in done.stdout


def test_what_the_readme_installs_is_there():
    named = set(re.findall(r"\bdeploy/([\w.-]+)", (DEPLOY / "README.md").read_text("utf-8")))

    assert named == {path.name for path in DEPLOY.iterdir()} - {"README.md"}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="not installed: systemd-analyze")
@pytest.mark.parametrize("drop_in", [False, True], ids=["by itself", "with the drop-in"])
def test_systemd_understands_the_unit(tmp_path, drop_in):
    program = str(Path(sys.executable).parent / "alignup")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text("utf-8").replace("/opt/alignup/bin/alignup", program))
    if drop_in:
        (tmp_path / f"{UNIT.name}.d").mkdir()
        text = DROP_IN.read_text("utf-8").replace("/opt/alignup/bin/alignup", program)
        (tmp_path / f"{UNIT.name}.d" / DROP_IN.name).write_text(text)

    done = subprocess.run(  # noqa: S603 - our own unit
        ["systemd-analyze", "verify", unit],  # noqa: S607 - where the system has it
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    said = [line for line in done.stderr.splitlines() if UNIT.name in line]  # and nothing of the machine's own units
    assert not said
