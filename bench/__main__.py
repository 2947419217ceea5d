"""Run every ``bench/bench_*.py``, or those named, and print each figure beside its budget; exit 1 when one is over.

Other load can halve the speed of a shared machine for seconds. So a figure over its budget is measured again a few
times, and the best counts.
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.harness import Figure, show

#: Additional runs of a benchmark while one of its figures is over its budget.
RETRIES = 4


def main(names: list[str]) -> int:
    """Run the benchmarks called *names* (default: all)."""
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"unknown benchmark: {', '.join(unknown)}; choose from {', '.join(known)}", file=sys.stderr)
        return 2
    over = 0
    for name in names or known:
        print(f"\n{name}\n{'-' * len(name)}")
        over += measure(importlib.import_module(f"bench.bench_{name}").figures)
    print(f"\n{over} over budget" if over else "\nall within budget")
    return 1 if over else 0


def measure(figures: Callable[[], Iterable[Figure]]) -> int:
    """Print all figures, measure those over their budget again, and return how many stay over."""
    best = {}
    for figure in figures():
        best[figure.name] = figure
        print(line(figure), flush=True)
    for _ in range(RETRIES):
        late = {name for name, figure in best.items() if figure.over}
        if not late:
            break
        print("again:")
        for figure in figures():
            if figure.name in late and figure.seconds < best[figure.name].seconds:
                best[figure.name] = figure
                print(line(figure), flush=True)
    return sum(figure.over for figure in best.values())


def line(figure: Figure) -> str:
    budget = "" if figure.budget is None else f"budget {show(figure.budget)}"
    verdict = "OVER" if figure.over else "ok" if figure.budget is not None else ""
    return f"{figure.name:<62}{show(figure.seconds):>10}  {budget:<16}{verdict:<5}{figure.note}".rstrip()


sys.exit(main(sys.argv[1:]))
