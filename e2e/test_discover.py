"""Discovery in a real kernel finds the hardware of the guest."""

from pathlib import Path

import pytest

from alignup.machines import load
from e2e import disk
from e2e.guest import missing
from e2e.marks import needs
from e2e.record_machines import SHAPES, record_guest
from tests.discover import expected


@needs(missing())
@pytest.mark.parametrize("name", ["guest-4n-2s"])
def test_discovery_finds_the_shape_of_a_guest(tmp_path: Path, name: str) -> None:
    archive, guest = record_guest(SHAPES[name], image=disk.make(tmp_path))
    file = tmp_path / "machine.tar.gz"
    file.write_bytes(archive)

    machine = load(file)

    assert list(expected.hardware(machine, guest.hardware())) == []
    assert list(expected.kubelet(machine, guest.kubelet())) == []
