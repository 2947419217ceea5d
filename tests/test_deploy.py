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

STARTING = {
    *("ExecStart", "Type", "WatchdogSec", "Restart", "RestartSec", "RestartPreventExitStatus"),
    *("TimeoutStopSec", "StateDirectory", "StateDirectoryMode", "ConfigurationDirectory", "UMask"),
    *("OOMScoreAdjust", "LimitNOFILE", "TasksMax"),
}
#: ``e2e/test_deploy.py`` runs an agent with it, without the part that needs a mount namespace.
HARDENING = {
    *("CapabilityBoundingSet", "NoNewPrivileges", "RestrictNamespaces", "MemoryDenyWriteExecute", "RestrictRealtime"),
    *("LockPersonality", "RestrictAddressFamilies", "SystemCallArchitectures", "SystemCallFilter"),
    *("SystemCallErrorNumber",),
    *("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectProc", "ProtectControlGroups"),
    *("ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "RestrictSUIDSGID"),
}


def test_the_agent_takes_the_options_of_the_unit():
    program, name, *words = shlex.split(settings(UNIT)["ExecStart"])

    context = command.make_context(name, words)

    assert (program, name) == ("/opt/alignup/bin/alignup", "agent")
    assert context.params["manifest_dir"] == Path("/etc/alignup/manifests")


def test_an_unknown_option_fails():
    with pytest.raises(click.NoSuchOption, match="--manifests"):
        command.make_context("agent", ["--manifests", "pods"])


def test_the_unit_is_hardened():
    names = {name for name, _ in lines(UNIT)}

    assert names == STARTING | HARDENING
    assert settings(UNIT)["CapabilityBoundingSet"] == ""


def test_the_agent_is_restarted_except_with_bad_options():
    unit = settings(UNIT)

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
def test_systemd_accepts_the_unit(tmp_path):
    program = str(Path(sys.executable).parent / "alignup")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text("utf-8").replace("/opt/alignup/bin/alignup", program))

    done = subprocess.run(  # noqa: S603 - our own unit
        ["systemd-analyze", "verify", unit],  # noqa: S607 - found on the PATH
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]  # not the machine's other units
    assert not complaints
