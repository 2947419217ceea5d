"""Run every ``bench/bench_*.py``, or those named, and print each figure beside its budget; exit 1 when one is over.

Each figure that has a baseline is compared with it, and marked WORSE if it grew by more than 10 %. ``--record FILE``
makes a baseline of this run.

Other load can halve the speed of a shared machine for seconds. So a figure over its budget, or worse than the baseline,
is measured again a few times, and the best counts.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.baseline import DEFAULT, TOLERANCE, Baseline
from bench.harness import Figure, reference, show

#: Additional runs of a benchmark while one of its figures is over its budget or worse than the baseline.
RETRIES = 4


def main(arguments: list[str]) -> int:
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)} (default: all)")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="compare with FILE (default: the last release)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the figures to FILE, as a baseline")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        print(f"unknown benchmark: {', '.join(unknown)}; choose from {', '.join(known)}", file=sys.stderr)
        return 2
    path = options.baseline or DEFAULT
    if not path.exists():
        print(f"there is no baseline {path}; make one with --record {path}", file=sys.stderr)
        return 2
    baseline = Baseline.read(path)
    recorded = Baseline()
    over = worse = 0
    for name in options.names or known:
        print(f"\n{name}\n{'-' * len(name)}")
        benchmark = Benchmark(name, importlib.import_module(f"bench.bench_{name}").figures, baseline)
        benchmark.run()
        over += benchmark.count(benchmark.is_over)
        worse += benchmark.count(benchmark.is_worse)
        for figure in benchmark.best.values():
            recorded.add(benchmark.key(figure), figure, reference=benchmark.reference)
    print(f"\n{over} over budget" if over else "\nall within budget")
    print(f"{worse} worse than {baseline.release} by more than {TOLERANCE:.0%}" if worse else "none worse than before")
    if options.record:
        recorded.write(options.record)
    return 1 if over else 0


class Benchmark:
    """One module of figures: the best of each, and the speed of the machine meanwhile."""

    def __init__(self, name: str, figures: Callable[[], Iterable[Figure]], baseline: Baseline) -> None:
        self.name, self.figures, self.baseline = name, figures, baseline
        self.best: dict[str, Figure] = {}
        self.reference = reference()

    def run(self) -> None:
        """Print all figures, and measure those over their budget or worse than the baseline again."""
        self._measure(None)
        for _ in range(RETRIES):
            again = {name for name, figure in self.best.items() if self.is_over(figure) or self.is_worse(figure)}
            if not again:
                break
            print("again:")
            self._measure(again)

    def _measure(self, only: set[str] | None) -> None:
        for figure in self.figures():
            self.reference = min(self.reference, reference())
            known = self.best.get(figure.name)
            if only is None or (figure.name in only and known and figure.value < known.value):
                self.best[figure.name] = figure
                print(self.line(figure), flush=True)

    def key(self, figure: Figure) -> str:
        return f"{self.name}: {figure.name}"

    def is_over(self, figure: Figure) -> bool:
        return figure.over

    def is_worse(self, figure: Figure) -> bool:
        return (self.growth(figure) or 0) > TOLERANCE

    def growth(self, figure: Figure) -> float | None:
        return self.baseline.growth(self.key(figure), figure, reference=self.reference)

    def count(self, test: Callable[[Figure], bool]) -> int:
        return sum(map(test, self.best.values()))

    def line(self, figure: Figure) -> str:
        budget = "" if figure.budget is None else f"budget {show(figure.budget, figure.unit)}"
        verdict = "OVER" if figure.over else "ok" if figure.budget is not None else ""
        growth = self.growth(figure)
        change = "" if growth is None else f"{growth:+.0%}{' WORSE' if growth > TOLERANCE else ''}"
        text = (
            f"{figure.name:<62}{show(figure.value, figure.unit):>11}  {budget:<16}{verdict:<5}{change:<13}{figure.note}"
        )
        return text.rstrip()


sys.exit(main(sys.argv[1:]))
