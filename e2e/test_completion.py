"""bash, zsh and fish complete files, machines, and the pods of a running agent with the scripts that Alignup prints."""
# ruff: noqa: S606

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.programs import not_installed
from tests.agent.agents import running

SECONDS = 60
POD = """apiVersion: v1
kind: Pod
metadata: {name: web-server, namespace: default}
spec: {containers: [{name: app, resources: {limits: {cpu: 1, memory: 64Mi}}}]}
"""
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a file, scripts, and the socket of an agent that has a pod."""
    directory = tmp_path_factory.mktemp("c")
    (directory / "example.yaml").write_text(POD)
    for shell in ("bash", "zsh", "fish"):
        script = subprocess.run([PROGRAMS / "alignup", "completion", shell], capture_output=True, check=True).stdout
        (directory / f"alignup.{shell}").write_bytes(script)
    with running(directory / "agent"):
        command = [str(PROGRAMS / "alignup"), "admit", "-f", str(directory / "example.yaml")]
        subprocess.run(command, env=environment(directory), check=True)
        yield directory


def environment(place: Path) -> dict[str, str]:
    return {
        "PATH": os.pathsep.join([str(PROGRAMS), os.environ["PATH"]]),
        "HOME": str(place),
        "TERM": "dumb",
        "ALIGNUP_AGENT": f"unix:{place}/agent/agent.sock",
    }


def in_bash(typed: str, place: Path) -> str:
    """Return what bash offers for the last word."""
    *before, last = typed.split(" ")
    words = " ".join(map(shlex.quote, [*before, last]))
    script = f"""
. ./alignup.bash
COMP_WORDS=({words}) COMP_CWORD={len(before)}
_alignup_completion alignup {shlex.quote(last)} {shlex.quote(before[-1])}
printf '%s\\n' "${{COMPREPLY[@]}}"
compgen -o default -- {shlex.quote(last)} || true
"""
    return run(["bash", "--norc", "-c", script], place)


def in_fish(typed: str, place: Path) -> str:
    return run(["fish", "--no-config", "-c", f"source alignup.fish; complete -C {shlex.quote(typed)}"], place)


def run(command: list[str], place: Path) -> str:
    done = subprocess.run(
        command, cwd=place, env=environment(place), capture_output=True, text=True, check=True, timeout=SECONDS
    )
    return done.stdout


def in_zsh(typed: str, place: Path) -> str:
    """Return the line that zsh shows after the tab key."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(place)
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment(place))
    try:
        setup = "PS1='$ '; autoload -Uz compinit && compinit -u -D; . ./alignup.zsh; echo loaded-$((1 + 1))\n"
        os.write(terminal, setup.encode())
        read_until(terminal, b"loaded-2\r\n")
        os.write(terminal, f"{typed}\t#end".encode())
        return read_until(terminal, b"#end").decode(errors="replace").replace("\\ ", " ")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, text: bytes) -> bytes:
    """Return what is read up to *text*; what was typed ahead is echoed with a tab first, and does not count."""
    output, end = b"", time.monotonic() + SECONDS
    while text not in output.rpartition(b"\t")[2].removeprefix(text):
        assert time.monotonic() < end, output
        if select.select([terminal], [], [], 1)[0]:
            output += os.read(terminal, 4096)
    return output


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("alignup why -f exa", "example.yaml"),
        ("alignup why --config exa", "example.yaml"),
        ("alignup machine show pac", "pack:2 numa:1 core:8 pu:2"),
        ("alignup release web", "web-server"),
        ("alignup mach", "machine"),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete(shell: str, typed: str, offered: str, place: Path) -> None:
    if absent := not_installed([shell]):
        pytest.skip(absent)
    complete = {"bash": in_bash, "zsh": in_zsh, "fish": in_fish}[shell]

    assert offered in complete(typed, place)
