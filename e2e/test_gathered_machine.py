"""The archive of hwloc-gather-topology is read as it is."""

import subprocess
from pathlib import Path

import pytest

from alignup.machines import discover, load
from e2e.programs import not_installed


def test_the_archive_has_this_machine(tmp_path: Path) -> None:
    if absent := not_installed(["hwloc-gather-topology"]):
        pytest.skip(absent)
    subprocess.run(["hwloc-gather-topology", "--no-cpuid", tmp_path / "host"], check=True, capture_output=True)

    gathered, machine = load(tmp_path / "host.tar.bz2"), discover()

    assert (gathered.cpus, gathered.nodes, gathered.distances) == (machine.cpus, machine.nodes, machine.distances)
