"""The start of guests, with a program in place of QEMU."""

from pathlib import Path

import pytest

from e2e import disk, guest

SHAPE = guest.Shape(sockets=1, cores=1, threads=1, nodes=(guest.Node(256, "0"),))
GOOD = f"booting\n{disk.BEGIN}\nresult\n{disk.END}\n"
LOCKED = f"{disk.BEGIN}\n[  120.7] {guest.LOCKUP}: hung tasks\n"
#: The first start prints the file ``printed-1``, the second ``printed-2``, and so on.
QEMU = """#!/bin/sh
cd "$(dirname "$0")"
echo >> starts
cat "printed-$(wc -l < starts)"
"""


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A disk image, in the directory of the program."""
    program = tmp_path / "qemu-system-x86_64"
    program.write_text(QEMU)
    program.chmod(0o755)
    kernel = tmp_path / "vmlinuz"
    kernel.touch()
    monkeypatch.setenv("ALIGNUP_GUEST_KERNEL", str(kernel))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "image"


def write_output(image: Path, *outputs: str) -> None:
    for number, output in enumerate(outputs, 1):
        (image.parent / f"printed-{number}").write_text(output)


def starts(image: Path) -> int:
    return len((image.parent / "starts").read_text())


@pytest.mark.parametrize("hung", ["booting\n", LOCKED])
def test_a_guest_that_hangs_is_started_again(image: Path, hung: str) -> None:
    write_output(image, hung, GOOD)
    assert guest.run(SHAPE, "", image=image) == "result"
    assert starts(image) == 2


def test_a_script_that_fails_is_not_run_again(image: Path) -> None:
    write_output(image, f"{disk.BEGIN}\n[  3.2] Kernel panic - not syncing: Attempted to kill init!\n", GOOD)
    with pytest.raises(RuntimeError, match="timed out or crashed"):
        guest.run(SHAPE, "", image=image)
    assert starts(image) == 1


def test_a_guest_that_always_hangs_is_an_error(image: Path) -> None:
    write_output(image, *[LOCKED] * 3)
    with pytest.raises(RuntimeError, match="softlockup"):
        guest.run(SHAPE, "", image=image)
    assert starts(image) == 3
