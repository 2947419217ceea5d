"""The wheels that packages and images are made of."""

import os
import platform
import subprocess
import sys
from pathlib import Path

_FIRST_GLIBC = 17  #: manylinux2014 is manylinux_2_17


def build(root: Path, into: Path) -> Path:
    """Build the wheel of the project in *root*."""
    words = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(into), str(root))
    _pip(*words, source_date=source_date(root))
    return next(into.glob("alignup-*.whl"))


def download(lock: Path, into: Path, *, python: str, libc: tuple[int, int]) -> list[Path]:
    """Download the locked wheels for Python *python* on Linux with glibc *libc*; pip checks their hashes."""
    machine, tag = platform.machine(), f"cp{python.replace('.', '')}"
    wanted = into / tag
    done, text = wanted / "lock", lock.read_text("utf-8")
    if not (done.exists() and done.read_text("utf-8") == text):
        for old in wanted.glob("*"):
            old.unlink()
        platforms = [f"manylinux_{libc[0]}_{minor}_{machine}" for minor in range(libc[1], _FIRST_GLIBC - 1, -1)]
        platforms += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
        _pip(
            *("download", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--requirement", str(lock)),
            *("--implementation", "cp", "--python-version", python),
            *(word for name in (tag, "abi3", "none") for word in ("--abi", name)),
            *(word for name in platforms for word in ("--platform", name)),
            *("--dest", str(wanted)),
        )
        done.write_text(text, "utf-8")
    return sorted(wanted.glob("*.whl"))


def source_date(root: Path) -> int:
    """Return the time of the source: ``SOURCE_DATE_EPOCH``, that of the commit, or the first day a wheel can have."""
    if seconds := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(seconds)
    command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else 315_532_800


def _pip(*words: str, source_date: int | None = None) -> None:
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if source_date is not None:
        env["SOURCE_DATE_EPOCH"] = str(source_date)
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *words], check=True, env=env)
