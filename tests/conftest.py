"""Options of the test run, and the summary it prints at the end."""

import os
import signal
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.conformance.harness import TALLIES, Tally
from tests.discover.expected import VERDICTS, Verdict
from tests.recorded.replay import RUNS, Run

#: Examples per property test; raise it for a long run (``ALIGNUP_EXAMPLES=2000 make test``).
EXAMPLES = int(os.environ.get("ALIGNUP_EXAMPLES", "100"))

#: CI uses the same examples every time. A run by hand uses new ones.
DETERMINISTIC = "CI" in os.environ

settings.register_profile("alignup", deadline=None, print_blob=True, max_examples=EXAMPLES, derandomize=DETERMINISTIC)
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
        help="run discovery on another set of recorded machines: *.tar.gz and expected/ (or set ALIGNUP_MACHINES)",
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
    if not any((*vectors.glob("*.jsonl.gz"), *vectors.glob("*/index-*.jsonl"))):
        raise pytest.UsageError(f"--vectors {vectors}: no such directory, or no vectors (*.jsonl.gz) in it")
    machines: Path = config.getoption("--machines")
    if not any(machines.glob("*.tar.gz")):
        raise pytest.UsageError(f"--machines {machines}: no such directory, or no recorded machines (*.tar.gz) in it")
    recorded: Path = config.getoption("--recorded")
    if not any(recorded.glob("*.json.gz")):
        raise pytest.UsageError(f"--recorded {recorded}: no such directory, or no recorded runs (*.json.gz) in it")
    # A process started in the background ignores SIGINT and others, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    config.stash[TALLIES] = []
    config.stash[VERDICTS] = []
    config.stash[RUNS] = []
    config.stash[WORKER_LINES] = []


#: A line of the summary: its section, its text, and whether it reports a failure.
Line = tuple[str, str, bool]
#: Summary lines of the xdist workers.
WORKER_LINES = pytest.StashKey[list[Line]]()


def summary_lines(config: pytest.Config) -> list[Line]:
    """Return the summary lines of this process."""
    tallies: list[Tally] = config.stash[TALLIES]
    verdicts: list[Verdict] = config.stash[VERDICTS]
    runs: list[Run] = config.stash[RUNS]
    return [
        *(("conformance, cases per file", one.line(), bool(one.failures)) for one in tallies),
        *(("recorded machines, each in two views", one.line(), bool(one.differences)) for one in verdicts),
        *(("recorded runs of a kubelet, steps of each", one.line(), bool(one.failures)) for one in runs),
    ]


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # set in xdist workers
    if output is not None:
        output["lines"] = summary_lines(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", None) or {}
    node.config.stash[WORKER_LINES] += [tuple(line) for line in output.get("lines", ())]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = sorted([*summary_lines(config), *config.stash[WORKER_LINES]])
    for section, of_section in groupby(lines, key=itemgetter(0)):
        terminalreporter.section(section)
        for _, line, failed in of_section:
            terminalreporter.write_line(line, red=failed)
