"""What all tests share: the options of the test run, and what it prints at the end."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.conformance.harness import TALLIES, Tally
from tests.discover.expected import VERDICTS, Verdict
from tests.recorded.replay import RUNS, Run

#: Examples a property is tried on; more of them for a long look (``ALIGNUP_EXAMPLES=2000 make test``).
EXAMPLES = int(os.environ.get("ALIGNUP_EXAMPLES", "100"))

settings.register_profile("alignup", deadline=None, print_blob=True, max_examples=EXAMPLES)
settings.load_profile("alignup")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vectors",
        type=Path,
        default=Path(__file__).parent / "conformance" / "vectors",
        metavar="DIR",
        help="run the conformance tests on another set of vectors of the same formats (all files or only some)",
    )
    parser.addoption(
        "--machines",
        type=Path,
        default=Path(os.environ.get("ALIGNUP_MACHINES") or Path(__file__).parent / "machines"),
        metavar="DIR",
        help="try discovery on another set of recorded machines: *.tar.gz and expected/ (or set ALIGNUP_MACHINES)",
    )
    parser.addoption(
        "--recorded",
        type=Path,
        default=Path(__file__).parent / "recorded" / "kubelet",
        metavar="DIR",
        help="replay another set of recorded runs of a kubelet: *.json.gz",
    )


def pytest_configure(config: pytest.Config) -> None:
    vectors: Path = config.getoption("--vectors")
    if not any(vectors.glob("*.jsonl.gz")):
        raise pytest.UsageError(f"--vectors {vectors}: no such directory, or no vectors (*.jsonl.gz) in it")
    machines: Path = config.getoption("--machines")
    if not any(machines.glob("*.tar.gz")):
        raise pytest.UsageError(f"--machines {machines}: no such directory, or no recorded machines (*.tar.gz) in it")
    recorded: Path = config.getoption("--recorded")
    if not any(recorded.glob("*.json.gz")):
        raise pytest.UsageError(f"--recorded {recorded}: no such directory, or no recorded runs (*.json.gz) in it")
    config.stash[TALLIES] = []
    config.stash[VERDICTS] = []
    config.stash[RUNS] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tallies: list[Tally] = config.stash[TALLIES]
    if tallies:
        terminalreporter.section("conformance, cases per file")
    for tally in sorted(tallies, key=lambda tally: tally.file):
        terminalreporter.write_line(tally.line(), red=bool(tally.failures))
    verdicts: list[Verdict] = config.stash[VERDICTS]
    if verdicts:
        terminalreporter.section("recorded machines, each in two views")
    for verdict in sorted(verdicts, key=lambda verdict: (verdict.name, verdict.view)):
        terminalreporter.write_line(verdict.line(), red=bool(verdict.differences))
    runs: list[Run] = config.stash[RUNS]
    if runs:
        terminalreporter.section("recorded runs of a kubelet, steps of each")
    for run in sorted(runs, key=lambda run: run.name):
        terminalreporter.write_line(run.line(), red=bool(run.failures))
