"""The files in ``deploy/`` work unchanged: existing options, lines systemd accepts, a configuration that starts."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from alignup.cli.agent import command
from tests.cli.commands import in_process
from tests.console_runner import ROOT
from tests.systemd_units import lines, settings

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "alignup-agent.service"
DROP_IN = DEPLOY / "admission.conf"

STARTING = {
    *("ExecStart", "Type", "WatchdogSec", "Restart", "RestartSec", "RestartPreventExitStatus", "KillMode"),
    *("TimeoutStopSec", "StateDirectory", "StateDirectoryMode", "ConfigurationDirectory", "UMask"),
    *("OOMScoreAdjust", "LimitNOFILE", "TasksMax"),
}
#: Hardening that keeps the service in the host's mount namespace. ``e2e/test_deploy.py`` runs an agent with it.
SAME_MOUNTS = {
    *("CapabilityBoundingSet", "NoNewPrivileges", "RestrictNamespaces", "MemoryDenyWriteExecute", "RestrictRealtime"),
    *("LockPersonality", "RestrictAddressFamilies", "SystemCallArchitectures", "SystemCallFilter"),
    *("SystemCallErrorNumber",),
}
#: Hardening that needs a mount namespace of its own or forbids setuid bits; for an agent that runs no pods.
OWN_MOUNTS = {
    *("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectProc", "ProtectControlGroups"),
    *("ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "RestrictSUIDSGID"),
}


def exec_start(unit: Path) -> list[str]:
    return shlex.split(settings(unit)["ExecStart"])


@pytest.mark.parametrize("unit", [UNIT, DROP_IN], ids=["runs pods", "only decides"])
def test_the_agent_takes_the_options_of_the_unit(unit):
    program, name, *words = exec_start(unit)

    context = command.make_context(name, words)

    assert (program, name) == ("/opt/alignup/bin/alignup", "agent")
    assert context.params["runtime"] == ("cri" if unit is UNIT else "none")


def test_an_unknown_option_fails():
    with pytest.raises(click.NoSuchOption, match="--runtimes"):
        command.make_context("agent", ["--runtimes", "cri"])


def test_the_unit_that_runs_pods_stays_in_the_hosts_mount_namespace():
    names = {name for name, _ in lines(UNIT)}

    assert names == STARTING | SAME_MOUNTS


def test_the_unit_that_only_decides_is_hardened_further():
    unit = settings(DROP_IN)

    assert OWN_MOUNTS <= unit.keys() <= OWN_MOUNTS | {"ExecStart", "CapabilityBoundingSet", "SystemCallFilter"}
    assert unit["CapabilityBoundingSet"] == ""
    assert ("ExecStart", "") in lines(DROP_IN), "the drop-in must clear the unit's command first"


def test_stopping_the_agent_keeps_containers_and_bad_options_prevent_a_restart():
    unit = settings(UNIT)

    assert unit["KillMode"] == "process"
    assert (unit["Restart"], unit["RestartPreventExitStatus"]) == ("always", "2")
    assert (unit["Type"], unit["WatchdogSec"]) == ("notify", "60")


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param("numa:1(memory=4GiB) core:2 pu:1", id="on a small machine"),
        pytest.param("pack:2 numa:2(memory=32GiB) core:8 pu:2", id="on four NUMA nodes"),
        pytest.param(str(ROOT / "examples" / "node" / "machine.yaml"), id="on two NUMA nodes with devices"),
    ],
)
def test_the_configuration_starts(machine):
    done = in_process("doctor", "--config", DEPLOY / "kubelet.yaml", "--machine", machine)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "This kubelet starts, without warnings." in done.stdout


def test_the_readme_names_every_file():
    named = set(re.findall(r"\bdeploy/([\w.-]+)", (DEPLOY / "README.md").read_text("utf-8")))

    assert named == {path.name for path in DEPLOY.iterdir()} - {"README.md"}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="not installed: systemd-analyze")
@pytest.mark.parametrize("drop_in", [False, True], ids=["alone", "with the drop-in"])
def test_systemd_accepts_the_unit(tmp_path, drop_in):
    program = str(Path(sys.executable).parent / "alignup")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text("utf-8").replace("/opt/alignup/bin/alignup", program))
    if drop_in:
        (tmp_path / f"{UNIT.name}.d").mkdir()
        text = DROP_IN.read_text("utf-8").replace("/opt/alignup/bin/alignup", program)
        (tmp_path / f"{UNIT.name}.d" / DROP_IN.name).write_text(text)

    done = subprocess.run(  # noqa: S603 - our own unit
        ["systemd-analyze", "verify", unit],  # noqa: S607 - found on the PATH
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]  # not the machine's other units
    assert not complaints
