"""``make dist`` builds, twice the same, a wheel that runs in an empty environment without this checkout."""
# ruff: noqa: S101, S603

import subprocess
import sys
from pathlib import Path

import pytest

from alignup import __version__
from tools import dist

TIMEOUT = 900  #: seconds


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    assert dist.main(["--output", str(place)]) == 0
    return place


def test_a_second_build_gives_the_same_files(built: Path, tmp_path: Path) -> None:
    dist.main(["--output", str(tmp_path)])

    first, again = ({path.name: path.read_bytes() for path in place.iterdir()} for place in (built, tmp_path))
    assert len(first) == 2
    assert first == again


@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_it_installs_and_runs_in_an_empty_environment(built: Path, tmp_path: Path, kind: str) -> None:
    (package,) = built.glob(f"*.{kind}")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=TIMEOUT)
    subprocess.run(
        [tmp_path / "venv" / "bin" / "pip", "install", "--quiet", f"{package}[agent,cluster]"],
        check=True,
        cwd=tmp_path,
        timeout=TIMEOUT,
    )

    def run(*words: str) -> str:
        command = [str(tmp_path / "venv" / "bin" / words[0]), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=TIMEOUT)
        return str(done.stdout)

    assert run("alignup", "-V").startswith(f"alignup {__version__} (commit ")
    assert "2 NUMA nodes" in run("alignup", "machine", "show", "numa:2 core:2 pu:1")
    assert run("kubectl-alignup", "--help").startswith("Usage: ")
    assert run("alignup", "observe", "--help").startswith("Usage: ")
    run("python", "-c", "import alignup.agent.daemon, alignup.cluster.scheduling.service")
    share = tmp_path / "venv" / "share"
    assert (share / "man" / "man1" / "alignup-why.1").is_file()
    assert (share / "bash-completion" / "completions" / "alignup").is_file()
