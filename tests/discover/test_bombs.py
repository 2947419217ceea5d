"""Inputs that describe something enormous are rejected, or shown, with little memory."""

from itertools import product
from pathlib import Path
from random import Random

import pytest

from tests.discover import bombs
from tests.effort import SEED, SOAK, did, rounds


def write(directory: Path, contents: dict[str, bytes]) -> list[Path]:
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return [directory / name for name in contents]


def test_bombs_are_rejected_with_little_memory(tmp_path: Path):
    results = bombs.show(write(tmp_path, bombs.REJECTED), "-otext")

    assert {name: code for (name, _), (code, _) in results.items()} == dict.fromkeys(bombs.REJECTED, 2)
    assert [name for name, (_, errors) in results.items() if not errors.startswith("alignup: ")] == []


def test_strange_machines_are_shown_with_little_memory(tmp_path: Path):
    options = ("-otext", "-osvg", "-oyaml", "--kubelet")

    results = bombs.show(write(tmp_path, bombs.SHOWN), *options)

    assert results == dict.fromkeys(product(bombs.SHOWN, options), (0, ""))


@pytest.mark.soak
def test_generated_bombs_end_with_a_machine_or_an_error(tmp_path: Path):
    contents = dict(bombs.variants(Random(SEED), rounds(4, soak=100), most=rounds(1000, soak=500_000)))
    tries = list(product(contents, ("-otext", "-oyaml") if SOAK else ("-otext",)))

    results = bombs.show(write(tmp_path, contents), *{option for _, option in tries})
    findings = [name for name in tries if results.get(name, (1, ""))[0] not in {0, 2}]
    did(f"bombs shown as machines, {len(findings)} findings", len(tries))

    assert findings == []
