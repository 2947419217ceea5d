"""``make dist`` builds, twice the same, a wheel that runs in an empty environment without this checkout.

pip, pipx and uv get the libraries from the package index that they are configured to use.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from alignup import __version__
from e2e.programs import not_installed
from tests.console_runner import ROOT

TIMEOUT = 900  #: seconds


def build(place: Path) -> None:
    subprocess.run(["make", "-C", ROOT, "dist", f"DIST={place}"], check=True, timeout=TIMEOUT)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    build(place)
    return place


def test_a_second_build_gives_the_same_files(built: Path, tmp_path: Path) -> None:
    build(tmp_path)

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

    def run(program: str, *words: str) -> str:
        return _output([tmp_path / "venv" / "bin" / program, *words], tmp_path)

    assert run("alignup", "-V").startswith(f"alignup {__version__} (commit ")
    assert "2 NUMA nodes" in run("alignup", "machine", "show", "numa:2 core:2 pu:1")
    assert run("kubectl-alignup", "--help").startswith("Usage: ")
    assert run("alignup", "observe", "--help").startswith("Usage: ")
    run("python", "-c", "import alignup.agent.daemon, alignup.schedule.service")
    report = ["--generate", "telco", "--html", "report.html"]
    run("alignup", "simulate", "--machine", "numa:2 core:2 pu:1", *report)
    assert "uPlot" in (tmp_path / "report.html").read_text("utf-8")
    share = tmp_path / "venv" / "share"
    assert (share / "man" / "man1" / "alignup-why.1").is_file()
    assert (share / "bash-completion" / "completions" / "alignup").is_file()


@pytest.mark.parametrize("source", ["wheel", "clone"])
def test_pipx_installs_the_commands(built: Path, tmp_path: Path, source: str) -> None:
    if absent := not_installed(["pipx"]):
        pytest.skip(absent)
    env = {**os.environ, "PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    env |= {"PIPX_MAN_DIR": str(tmp_path / "man"), "PIPX_DEFAULT_PYTHON": sys.executable}

    subprocess.run(
        ["pipx", "install", f"{_package(built, source)}[agent,cluster]"], env=env, check=True, timeout=TIMEOUT
    )

    assert _output([tmp_path / "bin" / "alignup", "-V"], tmp_path).startswith(f"alignup {__version__} (commit ")
    assert _output([tmp_path / "bin" / "alignup", "observe", "--help"], tmp_path).startswith("Usage: ")
    assert _output([tmp_path / "bin" / "kubectl-alignup", "--help"], tmp_path).startswith("Usage: ")
    assert (tmp_path / "man" / "man1" / "alignup-why.1").exists()


@pytest.mark.parametrize("source", ["wheel", "clone"])
def test_uvx_runs_one_command_without_installing_it(built: Path, tmp_path: Path, source: str) -> None:
    if not shutil.which("uvx"):
        pytest.skip("not installed: uvx (pip install uv)")
    env = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_TOOL_DIR": str(tmp_path / "tools")}
    package = _package(built, source)

    shown = _output(["uvx", "--from", package, "alignup", "machine", "show", "numa:2 core:2 pu:1"], tmp_path, env)
    helped = _output(["uvx", "--from", f"{package}[cluster]", "kubectl-alignup", "--help"], tmp_path, env)

    assert "2 NUMA nodes" in shown
    assert helped.startswith("Usage: ")


def _package(built: Path, source: str) -> str:
    """Return what is installed: the wheel, or the directory of this checkout."""
    return str(next(built.glob("*.whl"))) if source == "wheel" else str(ROOT)


def _output(command: list[str | Path], place: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=True, timeout=TIMEOUT)
    return str(done.stdout)
