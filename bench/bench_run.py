"""``alignup run -- true``: what it adds to a command, decided by the user's own ledger and through an agent."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.bench_agent import CONFIG, agent
from bench.harness import Figure

ROUNDS = 15


def figures() -> Iterator[Figure]:
    """Every budget of runs."""
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        root = Path(place)
        environment = _environment(root)
        bare = _seconds(["true"], environment)
        yield Figure("python itself", _seconds([sys.executable, "-c", "pass"], environment) - bare)
        own = [sys.executable, "-m", "alignup", "run", "--no-agent"]
        yield Figure("alignup run, own ledger, adds", _seconds([*own, "--", "true"], environment) - bare, 0.250)
        cpu = _seconds([*own, "--wait", "--cpus", "1", "--", "true"], environment) - bare
        yield Figure("alignup run --cpus 1, own ledger, adds", cpu, 0.250)
        (root / "kubelet.json").write_text(json.dumps(CONFIG))
        with agent(root):
            through = [sys.executable, "-m", "alignup", "run", "--agent", f"unix:{root / 'agent' / 'agent.sock'}"]
            yield Figure("alignup run, agent, adds", _seconds([*through, "--", "true"], environment) - bare, 0.150)


def _environment(root: Path) -> Mapping[str, str]:
    """As a person has it: compiled modules are kept, and runs are not those of others."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(root / "compiled"), "ALIGNUP_RUN_DIR": str(root / "run")}


def _seconds(command: list[str], environment: Mapping[str, str]) -> float:
    """The least time a command took from its start to its end, once it was run before."""
    least = float("inf")
    for round_ in range(ROUNDS + 1):
        start = time.perf_counter()
        subprocess.run(command, env=environment, check=True)  # noqa: S603 - our own
        if round_:
            least = min(least, time.perf_counter() - start)
    return least
