"""The comparison of recorded machines notices every changed fact."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alignup.machines import load
from tests.discover import expected

MACHINES = Path(__file__).parent.parent / "machines"
NAME = "guest-offline"

#: Not compared: names for people, and verdicts of which only a part is.
FREE = {"name", "topologymanager"}


def places(facts: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every number, text and ``None`` in *facts*."""
    inside = facts.items() if isinstance(facts, dict) else enumerate(facts) if isinstance(facts, list) else ()
    seen = False
    for key, value in inside:
        seen = True
        if key not in FREE:
            yield from places(value, (*path, key))
    if not seen and not isinstance(facts, (dict, list)):
        yield path


def changed(facts: Any, path: tuple[Any, ...]) -> Any:
    """*facts* with one of them changed."""
    altered = copy.deepcopy(facts)
    inside = altered
    for key in path[:-1]:
        inside = inside[key]
    old = inside[path[-1]]
    inside[path[-1]] = 77 if old is None else old + 1 if isinstance(old, int) else {"0x": "0x7"}.get(old[:2], "1")
    return altered


@pytest.mark.parametrize(("suffix", "judge"), [("", expected.hardware), (".kubelet", expected.kubelet)])
def test_every_fact_counts(suffix, judge):
    machine = load(MACHINES / f"{NAME}.tar.gz")
    facts = json.loads((MACHINES / "expected" / f"{NAME}{suffix}.json").read_text())

    overlooked = [path for path in places(facts) if not list(judge(machine, changed(facts, path)))]

    assert list(judge(machine, facts)) == []
    # A device without locality stays one under any number below 0.
    assert [path for path in overlooked if path[-1] != "numa_node"] == []


def test_any_accepted_partition_matches():
    machine = load(MACHINES / "guest-2n.tar.gz")
    facts = json.loads((MACHINES / "expected" / "guest-2n.json").read_text())
    partition = facts["partitions"]["socket"]["partition"]

    facts["partitions"]["socket"] = {"partition": [[0, 1, 2, 3, 4, 5, 6, 7]], "accept": [[[0]], partition[::-1]]}

    assert list(expected.hardware(machine, facts)) == []
