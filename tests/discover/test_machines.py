"""Recorded machines against the known facts; ``--machines DIR`` selects another set."""

import json
from pathlib import Path

import pytest

from alignup.machines import cadvisor, load
from alignup.machines.archive import read_archive
from alignup.machines.file_reader import FileReader
from tests.discover import expected
from tests.discover.expected import VERDICTS, Verdict


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    recorded = sorted(metafunc.config.getoption("--machines").glob("*.tar.gz"))
    metafunc.parametrize("recorded", [pytest.param(path, id=path.name.removesuffix(".tar.gz")) for path in recorded])


def judged(request: pytest.FixtureRequest, recorded: Path, view: str) -> Verdict:
    verdict = Verdict(recorded.name.removesuffix(".tar.gz"), view)
    request.config.stash[VERDICTS].append(verdict)
    return verdict


def facts_of(recorded: Path, suffix: str) -> expected.Facts:
    path = recorded.parent / "expected" / f"{recorded.name.removesuffix('.tar.gz')}{suffix}.json"
    if not path.exists():
        pytest.skip(f"nothing is known of this view: there is no {path.name}")
    facts: expected.Facts = json.loads(path.read_text())
    return facts


def test_the_hardware_matches_the_facts(request, recorded):
    facts = facts_of(recorded, "")
    verdict = judged(request, recorded, "hardware")

    verdict.differences += expected.hardware(load(recorded), facts)

    assert not verdict.differences, "\n".join(verdict.differences)


def test_the_kubelets_view_matches_the_facts(request, recorded):
    facts = facts_of(recorded, ".kubelet")
    verdict = judged(request, recorded, "kubelet")

    verdict.differences += expected.kubelet(load(recorded), facts)
    if any("cores" in node for node in facts["nodes"] or ()):
        verdict.differences += expected.cores(cadvisor.read_machine_info(FileReader(read_archive(recorded))), facts)

    assert not verdict.differences, "\n".join(verdict.differences)
