"""The steps of the Containerfile, run in directories instead of a container, install programs that start."""
# ruff: noqa: S602

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.console_runner import ROOT
from tools.image import read_containerfile

TIMEOUT = 900  #: seconds


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Run the first stage; return the directory that the image gets."""
    _, (build, _) = read_containerfile()
    source, opt = tmp_path / "source", tmp_path / "opt"
    source.mkdir()
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for instruction, rest in build.instructions:
        if instruction == "COPY":
            *names, target = shlex.split(rest)
            for name in names:
                _copy(ROOT / name, source / (target if name.endswith("/") else name))
        elif instruction == "RUN":
            command = rest.replace("/opt/", f"{opt}/").replace("python -m", f"{sys.executable} -m")
            subprocess.run(command, shell=True, check=True, cwd=source, env=env, timeout=TIMEOUT)
    return opt / "alignup"


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def test_the_programs_of_the_image_start(installed: Path) -> None:
    for words in (["--version"], ["observe", "--help"], ["cluster", "why", "--help"], ["agent", "--help"]):
        done = subprocess.run([installed / "bin" / "alignup", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    megabytes = sum(path.stat().st_size for path in installed.rglob("*") if path.is_file()) / 1e6
    print(f"{megabytes:.0f} MB in {installed}")
    assert not list(installed.rglob("site-packages/pip"))
