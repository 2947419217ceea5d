"""What all tests share: the options of the test run, and what it prints at the end."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.conformance.harness import TALLIES, Tally

settings.register_profile("alignup", deadline=None, print_blob=True)
settings.load_profile("alignup")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vectors",
        type=Path,
        default=Path(__file__).parent / "conformance" / "vectors",
        metavar="DIR",
        help="run the conformance tests on another set of vectors of the same formats (all files or only some)",
    )


def pytest_configure(config: pytest.Config) -> None:
    vectors: Path = config.getoption("--vectors")
    if not vectors.is_dir():
        raise pytest.UsageError(f"--vectors {vectors}: no such directory")
    config.stash[TALLIES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tallies: list[Tally] = config.stash[TALLIES]
    if not tallies:
        return
    terminalreporter.section("conformance, cases per file")
    for tally in sorted(tallies, key=lambda tally: tally.file):
        terminalreporter.write_line(tally.line(), red=bool(tally.failures))
