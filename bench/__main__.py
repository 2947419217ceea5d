"""Run every ``bench/bench_*.py`` (or those named) and print each figure beside its budget; exit 1 when one is over."""

import importlib
import sys
from pathlib import Path

from bench.harness import Figure, show


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
        for figure in importlib.import_module(f"bench.bench_{name}").figures():
            over += figure.over
            print(line(figure), flush=True)
    print(f"\n{over} over budget" if over else "\nall within budget")
    return 1 if over else 0


def line(figure: Figure) -> str:
    """One figure as a line of the table."""
    budget = "" if figure.budget is None else f"budget {show(figure.budget)}"
    verdict = "OVER" if figure.over else "ok" if figure.budget is not None else ""
    return f"{figure.name:<58}{show(figure.seconds):>10}  {budget:<16}{verdict:<5}{figure.note}".rstrip()


sys.exit(main(sys.argv[1:]))
