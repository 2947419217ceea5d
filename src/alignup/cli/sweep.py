"""``alignup sweep``: simulate a cluster for every combination of machines, configurations and strategies."""

from dataclasses import dataclass
from pathlib import Path

import click

from alignup.align.release import NEWEST
from alignup.cli.app import define_command
from alignup.cli.options import (
    IntegerRange,
    NumberRange,
    choice_option,
    option,
    output_option,
    path_option,
    preview_option,
    with_options,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    results: Path | None = path_option("FILE", "CSV file for the results", "SPEC's name with .csv, in this directory")
    html: Path | None = path_option("FILE", "Write a self-contained HTML report with charts to FILE")
    engine: str = choice_option(("processes", "serial", "dask"), "Where to run simulations", "processes")
    jobs: int | None = option("N", "Number of processes", "one per CPU", type=IntegerRange(1, 1024))
    kubernetes_version: str | None = option(
        "VERSION", "Kubernetes release of machines and configurations in SPEC that name none", str(NEWEST)
    )
    dask: str | None = option("tcp://HOST:PORT", "Address of a Dask scheduler", "a local one")
    result_timeout: float = option(
        "SECONDS",
        "How long to wait for the next result of a Dask cluster",
        "3600",
        type=NumberRange(min=0.1),
        default=3600.0,
    )


@define_command("sweep", "alignup sweep examples/fleet/sweep.yaml --engine serial --html sweep.html")
@click.argument("spec", type=click.Path(path_type=Path))
@with_options("options", SweepOptions)
@preview_option
@output_option("text", "json", "yaml", "csv")
def command(*, spec: Path, options: SweepOptions, output: str) -> None:
    """Simulate a cluster for every combination of machines, configurations, strategies and seeds.

    SPEC lists what to combine, as described in docs/fleet.md. Each result is written to the CSV file as soon as it is
    known. To continue an interrupted sweep, run the command again. The complete file does not depend on the engine and
    the number of processes.

    --html compares the combinations, the best first: rejections, utilization, waiting times and stranded resources.
    """
    from alignup.cli import sweep_output  # noqa: PLC0415 - not needed for --help

    sweep_output.run(spec, options, output)
