"""Discovery in a real kernel: a guest is what it was started with."""
# ruff: noqa: S101 - a test, as those in tests/

from pathlib import Path

import pytest

from alignup.discover import load
from e2e import disk
from e2e.guest import missing
from e2e.record_machines import SHAPES, recorded
from tests.discover import expected

WHY = missing()


@pytest.mark.skipif(WHY is not None, reason=str(WHY))
@pytest.mark.parametrize("name", ["guest-4n-2s"])
def test_a_guest_is_what_it_was_started_with(tmp_path: Path, name: str) -> None:
    archive, known = recorded(SHAPES[name], image=disk.make(tmp_path))
    file = tmp_path / "machine.tar.gz"
    file.write_bytes(archive)

    machine = load(file)

    assert list(expected.hardware(machine, known.hardware())) == []
    assert list(expected.kubelet(machine, known.kubelet())) == []
