"""``alignup audit``: is everything where it was placed?"""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import Where, agent_options
from alignup.cli.options import form_option

if TYPE_CHECKING:
    from alignup.cli.inspection import Inspection

DRIFTED = 1
VERSION = 1  #: of the documents


@click.command(
    short_help="Is everything where it was placed? What drifted is found, and put back.",
    epilog=examples("alignup audit", "alignup audit -o json"),
)
@click.option("--fix", is_flag=True, help="Put back what drifted.")
@form_option("text", "json", "prometheus", what="For people, for machines, or as metrics.")
@agent_options
@debug_option
def command(*, fix: bool, form: str, where: Where) -> None:
    """Compare what was intended for everything placed by 'alignup run' with what the kernel says.

    Looked at are the cpusets of groups, where each thread may run and take memory from, where each process has memory,
    where devices are, and whether who decided still knows it so. With --fix it is put back, as far as that can be.

    The exit code is 0 when all is where it was placed, or is again; 1 when something is not.
    """
    from alignup.cli import inspection, runs  # noqa: PLC0415 - loaded with the command, not with its help

    found = inspection.inspect(runs.default_directory(os.environ), where=where, fix=fix)
    _FORMS[form](found)
    if found.drifts:
        raise click.exceptions.Exit(DRIFTED)


def _text(found: "Inspection") -> None:
    from alignup.cli import inputs, screen  # noqa: PLC0415 - see above

    for drift in found.fixed:
        screen.line(f"{drift} (put back)")
    for drift in found.drifts:
        screen.line(str(drift))
    inputs.warn(found.troubles)
    count = len(found.runs)
    runs = {0: "nothing runs", 1: "1 run"}.get(count, f"{count} runs")
    if not found.drifts:
        screen.line(f"{runs}: all is where it was placed" if count else f"{runs} that was placed by alignup run")


def _json(found: "Inspection") -> None:
    from alignup.cli import screen  # noqa: PLC0415 - see above

    drifts = [(one, True) for one in found.fixed] + [(one, False) for one in found.drifts]
    screen.values(
        {
            "version": VERSION,
            "runs": [{**run.intent.to_document(), "processes": list(run.pids)} for run in found.runs],
            "drift": [
                {
                    "run": one.uid,
                    "name": one.name,
                    "kind": str(one.kind),
                    "where": one.where,
                    "intended": one.intended,
                    "actual": one.actual,
                    "fixed": fixed,
                }
                for one, fixed in drifts
            ],
            "troubles": list(found.troubles),
        }
    )


def _prometheus(found: "Inspection") -> None:
    from alignup.cli import screen  # noqa: PLC0415 - see above

    screen.document("".join(f"{line}\n" for line in _metrics(found)))


def _metrics(found: "Inspection") -> Iterator[str]:
    from alignup.enforce.audit import Kind  # noqa: PLC0415 - see above

    yield "# HELP alignup_runs Runs that go on."
    yield "# TYPE alignup_runs gauge"
    yield f"alignup_runs {len(found.runs)}"
    yield "# HELP alignup_run_drift Things of a run that are not where they were placed."
    yield "# TYPE alignup_run_drift gauge"
    for run in found.runs:
        for kind in Kind:
            count = sum(one.uid == run.intent.uid and one.kind is kind for one in found.drifts)
            yield f'alignup_run_drift{{run="{run.intent.uid}",name="{_label(run.intent.name)}",kind="{kind}"}} {count}'


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_FORMS: dict[str, Callable[["Inspection"], None]] = {"text": _text, "json": _json, "prometheus": _prometheus}
