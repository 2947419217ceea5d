"""Running one file of vectors: every case is tried, failures are counted and shown, none stops the others."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from alignup.align.release import NEWEST, find_release

Case = dict[str, Any]

OWN_VECTORS = Path(__file__).parent / "vectors"

#: What a check says of a case: nothing when the answer is the kubelet's; a label when the case is one of its listed
#: defects, where our own safe answer was checked instead. A wrong answer is an ``AssertionError``.
Check = Callable[[Case], str | None]


@dataclass
class Tally:
    """How one file went."""

    file: str
    passed: int = 0
    apart: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def line(self) -> str:
        apart = "".join(f", {count} apart ({label})" for label, count in sorted(self.apart.items()))
        return f"{self.file:<36}{self.passed:>7} passed {len(self.failures):>5} failed{apart}"


TALLIES = pytest.StashKey[list[Tally]]()


def run(request: pytest.FixtureRequest, file: str, check: Check) -> None:
    """Try every case of *file*, and of the files of this name of other releases; ``case["release"]`` says which.

    Our own set has every file; another set may have only some.
    """
    vectors: Path = request.config.getoption("--vectors")
    others = sorted(vectors.glob(f"releases/*/{file}.jsonl.gz"))
    path = vectors / f"{file}.jsonl.gz"
    problems = []
    for each in others if others and not path.exists() and vectors != OWN_VECTORS else (path, *others):
        name = str(each.relative_to(vectors)).removesuffix(".jsonl.gz")
        problems.append(_run(request, name, path=each, cases=cases, check=check))
    _fail(problems)


def run_releases(request: pytest.FixtureRequest, file: str, check: Check) -> None:
    """Try every case of the files of this name that other releases have; they begin with their first case."""
    vectors: Path = request.config.getoption("--vectors")
    paths = sorted(vectors.glob(f"releases/*/{file}.jsonl.gz"))
    if not paths:
        pytest.skip(f"this set of vectors has no releases/*/{file}.jsonl.gz")
    names = {path: str(path.relative_to(vectors)).removesuffix(".jsonl.gz") for path in paths}
    _fail([_run(request, name, path=path, cases=packed_cases, check=check) for path, name in names.items()])


def run_packed(request: pytest.FixtureRequest, file: str, check: Check) -> None:
    """Try every case of the packed *file*, which has nothing but cases."""
    path: Path = request.config.getoption("--vectors") / f"{file}.jsonl.gz"
    _fail([_run(request, file, path=path, cases=packed_cases, check=check)])


def run_index(request: pytest.FixtureRequest, file: str, check: Callable[[Case, Path], str | None]) -> None:
    """Run every case of the plain *file*, whose cases name files in its directory; *check* gets the directory."""
    path: Path = request.config.getoption("--vectors") / f"{file}.jsonl"
    _fail([_run(request, file, path=path, cases=plain_cases, check=lambda case: check(case, path.parent))])


def _run(
    request: pytest.FixtureRequest,
    file: str,
    *,
    path: Path,
    cases: Callable[[Path], Iterator[tuple[int, Case]]],
    check: Check,
) -> str:
    """Return the first failures; empty if there are none."""
    if not path.exists():
        message = f"this set of vectors has no {path.name}"
        if OWN_VECTORS in path.parents:
            pytest.fail(f"{message}; restore {path}", pytrace=False)
        pytest.skip(message)
    tally = Tally(file)
    request.config.stash[TALLIES].append(tally)
    release = find_release(path.parent.name) if path.parent.parent.name == "releases" else NEWEST
    for number, case in cases(path):
        case["release"] = release
        try:
            label = check(case)
        except Exception as error:  # noqa: BLE001 - a crash in one case is that case's failure
            message = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            tally.failures.append(f"{case.get('id', f'line {number}')}: {message[:2000]}")
        else:
            if label:
                tally.apart[label] += 1
            else:
                tally.passed += 1
    assert tally.passed + sum(tally.apart.values()) + len(tally.failures) > 0, f"{path} has no cases"
    if not tally.failures:
        return ""
    shown = "\n".join(tally.failures[:10])
    return f"{len(tally.failures)} of the cases in {file} failed, the first:\n{shown}"


def _fail(problems: Sequence[str]) -> None:
    if any(problems):
        pytest.fail("\n".join(filter(None, problems)), pytrace=False)


def cases(path: Path) -> Iterator[tuple[int, Case]]:
    """The cases of a file with their line numbers; its first line describes the file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        next(lines)
        for number, line in enumerate(lines, start=2):
            yield number, json.loads(line)


def packed_cases(path: Path) -> Iterator[tuple[int, Case]]:
    """The cases of a packed file that has nothing but cases."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            yield number, json.loads(line)


def plain_cases(path: Path) -> Iterator[tuple[int, Case]]:
    """The cases of a file that is not packed and has nothing but cases."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            yield number, json.loads(line)
