"""``alignup run -- true``: the time it adds to a command, with the local ledger and with an agent."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.bench_agent import CONFIG, agent
from bench.harness import Figure, user_environment

ROUNDS = 15


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        root = Path(place)
        environment = _environment(root)
        bare = _seconds(["true"], environment)
        yield Figure("python itself", _seconds([sys.executable, "-c", "pass"], environment) - bare)
        command = [sys.executable, "-m", "alignup", "run", "--no-agent"]
        yield Figure("alignup run, local ledger, adds", _seconds([*command, "--", "true"], environment) - bare, 0.250)
        cpu = _seconds([*command, "--wait", "--cpus", "1", "--", "true"], environment) - bare
        yield Figure("alignup run --cpus 1, local ledger, adds", cpu, 0.250)
        (root / "kubelet.json").write_text(json.dumps(CONFIG))
        with agent(root):
            through = [sys.executable, "-m", "alignup", "run", "--agent", f"unix:{root / 'agent' / 'agent.sock'}"]
            yield Figure("alignup run, agent, adds", _seconds([*through, "--", "true"], environment) - bare, 0.150)


def _environment(root: Path) -> Mapping[str, str]:
    """As for a user, with a separate directory of runs."""
    return {**user_environment(), "ALIGNUP_RUN_DIR": str(root / "run")}


def _seconds(command: list[str], environment: Mapping[str, str]) -> float:
    """Return the least wall-clock time of several runs of a command, after one to warm up."""
    least = float("inf")
    for round_ in range(ROUNDS + 1):
        start = time.perf_counter()
        subprocess.run(command, env=environment, check=True)  # noqa: S603 - our own
        if round_:
            least = min(least, time.perf_counter() - start)
    return least
