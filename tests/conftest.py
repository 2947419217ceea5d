"""Options of the test run, and the summary it prints at the end."""

import gc
import os
import re
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import jinja2
import pytest
import structlog
from hypothesis import HealthCheck, is_hypothesis_test, settings

from alignup import garbage_collection
from alignup.web.pages import Pages
from tests.conformance.harness import OWN_VECTORS, TALLIES, Tally
from tests.discover.expected import VERDICTS, Verdict
from tests.effort import DONE, EXAMPLES, SEED, SOAK, did
from tests.recorded.replay import RUNS, Run
from tests.short_paths import make_long_root, short_directory
from tests.time_limits import prepare_limits, start_limit
from tests.virtual_clock import PROCESSES, VIRTUAL_CLOCK

settings.register_profile(
    "alignup",
    database=None,
    deadline=None,  # a busy machine is slow
    derandomize=not SOAK,
    max_examples=EXAMPLES,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("alignup")

# A socket below pytest's directory fails for everyone, not only for users with long names: it belongs in short_path.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(make_long_root()))
os.environ["ALIGNUP_CLAIMS_DIR"] = ""  # tests in other processes must not claim our CPUs

# With rich installed, structlog prints the variables of every frame: up to a second for one error that is logged.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback


class CompiledTemplates(jinja2.BytecodeCache):
    """Templates of pages are compiled once in this process, and not once for each of hundreds of services."""

    def __init__(self) -> None:
        self.code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        if bucket.key in self.code:
            bucket.bytecode_from_string(self.code[bucket.key])

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        self.code[bucket.key] = bucket.bytecode_to_string()


def _compile_templates_once() -> None:
    make_pages, compiled = Pages.__init__, CompiledTemplates()

    def make(pages: Pages, *arguments: Any, **options: Any) -> None:
        make_pages(pages, *arguments, **options)
        pages.templates.bytecode_cache = compiled

    Pages.__init__ = make  # type: ignore[method-assign, assignment]


_compile_templates_once()


def _keep_collection() -> None:
    """Leave the garbage collection of this process as it is: hundreds of services start in it, and end."""


garbage_collection.set_for_service = _keep_collection


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Asynchronous tests do not wait; those with gRPC, which has threads of its own, have another (grpc_fixtures)."""
    return VIRTUAL_CLOCK


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets."""
    with short_directory() as directory:
        yield directory


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vectors",
        type=Path,
        default=OWN_VECTORS,
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
    patterns = ("*.jsonl.gz", "*/index-*.jsonl", "releases/*/*.jsonl.gz")
    if not any(any(vectors.glob(pattern)) for pattern in patterns):
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
    prepare_limits(config)
    config.stash[TALLIES] = []
    config.stash[VERDICTS] = []
    config.stash[RUNS] = []
    config.stash[WORKER_LINES] = []
    config.stash[WORKER_DONE] = Counter()


def pytest_report_header() -> str:
    return f"seed {SEED} (ALIGNUP_SEED), {EXAMPLES} examples per property (ALIGNUP_EXAMPLES)"


#: The number of this xdist worker; ``None`` outside workers.
WORKER = re.match(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, since they stay to the end, and seldom collect garbage afterwards."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(20_000)  # the default takes 5 % of the time
    gc.enable()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin with other test modules: it loads what the others have compiled by then.

    Every second worker goes from the last to the first; the others begin at different places.
    """
    report = yield
    if WORKER and isinstance(collector, pytest.Directory):
        modules, number = report.result, int(WORKER[1])
        start = len(modules) * number // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        report.result = modules[::-1] if number % 2 else [*modules[start:], *modules[:start]]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Give all workers the same order; in a soak run, keep only the tests that scale."""
    if WORKER:
        items.sort(key=lambda item: item.path)
    yield
    if not SOAK:
        return
    scaling = [
        item for item in items if item.get_closest_marker("soak") or is_hypothesis_test(getattr(item, "obj", None))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in scaling])
    scaling.sort(
        key=lambda item: item.get_closest_marker("soak") is None
    )  # the longest first: no worker waits for them
    items[:] = scaling


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    start_limit(item)
    PROCESSES.started = False


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Limit the teardown of a test that has failed, too: pytest has stopped the timer by now."""
    if isinstance(node, pytest.Item):
        start_limit(node, again=True)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    statistics = getattr(item, "hypothesis_statistics", "")
    did("examples", sum(int(count) for count in re.findall(r"(\d+) passing,", statistics)))


#: A line of the summary: its section, its text, and whether it reports a failure.
Line = tuple[str, str, bool]
#: Summary lines of the xdist workers.
WORKER_LINES = pytest.StashKey[list[Line]]()
#: What the xdist workers did.
WORKER_DONE = pytest.StashKey[Counter[str]]()


def summary_lines(config: pytest.Config) -> list[Line]:
    """Return the summary lines of this process."""
    tallies: list[Tally] = config.stash[TALLIES]
    verdicts: list[Verdict] = config.stash[VERDICTS]
    runs: list[Run] = config.stash[RUNS]
    return [
        *(("conformance, cases per file", tally.line(), bool(tally.failures)) for tally in tallies),
        *(("recorded machines, each in two views", verdict.line(), bool(verdict.differences)) for verdict in verdicts),
        *(("recorded runs of a kubelet, steps of each", run.line(), bool(run.failures)) for run in runs),
    ]


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # set in xdist workers
    if output is not None:
        output["lines"] = summary_lines(session.config)
        output["done"] = dict(DONE)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", None) or {}
    node.config.stash[WORKER_LINES] += [tuple(line) for line in output.get("lines", ())]
    node.config.stash[WORKER_DONE].update(output.get("done", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = sorted([*summary_lines(config), *config.stash[WORKER_LINES]])
    for section, of_section in groupby(lines, key=itemgetter(0)):
        terminalreporter.section(section)
        for _, line, failed in of_section:
            terminalreporter.write_line(line, red=failed)
    done = config.stash[WORKER_DONE]
    done.update(DONE)  # the operator + would drop zeros, such as the number of findings
    if done:
        terminalreporter.section(f"work done, seed {SEED}")
    for work, count in sorted(done.items()):
        terminalreporter.write_line(f"{count:>10,} {work}")
