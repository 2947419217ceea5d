"""Example reports, for tests in a browser and for screenshots of the documentation."""

from pathlib import Path

from e2e.programs import run_alignup

_NODE = "--machine examples/node/machine.yaml --config examples/node/kubelet.yaml"
_COMMANDS = {
    "comparison": f"simulate --generate mixed --count 400 {_NODE} --compare policy,scope",
    "cluster": "simulate --cluster examples/fleet/training.yaml --generate gangs --count 700 --load 1.2 "
    "--strategy alignup,blind-least-allocated,blind-most-allocated",
    "sweep": "sweep examples/fleet/sweep.yaml --engine serial",
}


def write_reports(directory: Path) -> dict[str, Path]:
    """Write a report of each kind to *directory*, and return them by kind: comparison, cluster and sweep."""
    reports = {kind: directory / f"{kind}.html" for kind in _COMMANDS}
    for kind, words in _COMMANDS.items():
        results = ["--results", str(directory / "sweep.csv")] if kind == "sweep" else []
        run_alignup(*words.split(), *results, "--html", reports[kind]).check_returncode()
    return reports
