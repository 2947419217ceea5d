"""Builds the wheel and the source distribution in dist/: ``make dist``. The same commit gives the same bytes."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.wheels import source_date

ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make dist", description="Build the wheel and the source distribution.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the directory (default: dist)")
    output: Path = parser.parse_args(arguments).output.absolute()
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(source_date(ROOT))}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(output)]
    return subprocess.run(command, check=False, cwd=ROOT, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
