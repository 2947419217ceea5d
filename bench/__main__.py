"""Run every ``bench/bench_*.py`` (or those named) and print each figure beside its budget; exit 1 when one is over.

A machine that others use too runs at half its speed for seconds on end. So what is over its budget is measured again,
a few times, and the best counts: it can only be made worse by others.
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.harness import Figure, show

#: How often a benchmark is run again while one of its figures is over.
AGAIN = 4


def main(names: list[str]) -> int:
    """Run the benchmarks called *names*, all of them when none is named."""
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"no benchmark called {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    over = 0
    for name in names or known:
        print(f"\n{name}\n{'-' * len(name)}")
        over += measure(importlib.import_module(f"bench.bench_{name}").figures)
    print(f"\n{over} over budget" if over else "\nall within budget")
    return 1 if over else 0


def measure(figures: Callable[[], Iterable[Figure]]) -> int:
    """Print all *figures*, those over their budget again until they are not; how many are in the end."""
    best = {}
    for figure in figures():
        best[figure.name] = figure
        print(line(figure), flush=True)
    for _ in range(AGAIN):
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
    """One figure as a line of the table."""
    budget = "" if figure.budget is None else f"budget {show(figure.budget)}"
    verdict = "OVER" if figure.over else "ok" if figure.budget is not None else ""
    return f"{figure.name:<62}{show(figure.seconds):>10}  {budget:<16}{verdict:<5}{figure.note}".rstrip()


sys.exit(main(sys.argv[1:]))
