"""``alignup audit``: is everything where it was placed?"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import AgentOptions, agent_options
from alignup.cli.options import output_option

if TYPE_CHECKING:
    from alignup.cli.inspection import AuditReport
    from alignup.enforce.audit import Drift
    from alignup.enforce.containers import ContainerProcesses

DRIFTED = 1
VERSION = 1  #: of the documents


@click.command(
    short_help="Is everything where it was placed? What drifted is found, and put back.",
    epilog=examples("alignup audit", "alignup audit -o json"),
)
@click.option("--fix", is_flag=True, help="Put back what drifted.")
@output_option("text", "json", "prometheus", what="For people, for machines, or as metrics.")
@agent_options
@debug_option
def command(*, fix: bool, form: str, where: AgentOptions) -> None:
    """Compare what was intended for everything placed by 'alignup run' or an agent with what the kernel says.

    Looked at are the cpusets of groups, where each thread may run and take memory from, where each process has memory,
    where devices are, and whether who decided still knows it so; of an agent that runs containers also those it does
    not know. With --fix it is put back, as far as that can be.

    The exit code is 0 when all is where it was placed, or is again; 1 when something is not.
    """
    from alignup.cli import inspection  # noqa: PLC0415 - loaded with the command, not with its help
    from alignup.cli.run import run_directory  # noqa: PLC0415

    found = inspection.inspect(run_directory(), where=where, fix=fix)
    _FORMS[form](found)
    if found.drifts:
        raise click.exceptions.Exit(DRIFTED)


def _text(found: "AuditReport") -> None:
    from alignup.cli import inputs, terminal  # noqa: PLC0415 - see above

    for drift in found.fixed:
        terminal.print_line(f"{drift} (put back)")
    for drift in found.drifts:
        terminal.print_line(str(drift))
    inputs.print_notes(found.troubles)
    counts = {"run": len(found.runs), "container": len(found.containers)}
    told = [f"{count} {what}{'s' if count > 1 else ''}" for what, count in counts.items() if count]
    if found.drifts:
        return
    if told:
        terminal.print_line(f"{' and '.join(told)}: all is where it was placed")
    else:
        terminal.print_line(f"nothing runs that was placed by alignup run{' or the agent' if found.runtime else ''}")


def _json(found: "AuditReport") -> None:
    from alignup.cli import terminal  # noqa: PLC0415 - see above

    drifts = [(one, True) for one in found.fixed] + [(one, False) for one in found.drifts]
    terminal.print_json(
        {
            "version": VERSION,
            "runs": [{**run.intent.to_document(), "processes": list(run.pids)} for run in found.runs],
            "containers": list(map(_container, found.containers)),
            "drift": [{**_whose(one), **_drift(one), "fixed": fixed} for one, fixed in drifts],
            "troubles": list(found.troubles),
        }
    )


def _whose(one: "Drift") -> dict[str, Any]:
    if one.container or one.kind == "stray":
        return {"pod": one.uid, "container": one.container}
    return {"run": one.uid}


def _drift(one: "Drift") -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": str(one.kind),
        "where": one.where,
        "intended": one.intended,
        "actual": one.actual,
    }


def _container(one: "ContainerProcesses") -> dict[str, Any]:
    from alignup.align import bits  # noqa: PLC0415 - see above

    placed = one.container
    return {
        "uid": placed.uid,
        "pod": placed.pod,
        "container": placed.container,
        "id": placed.id,
        "pid": placed.pid,
        "cpus": bits.show(placed.cpus),
        "memoryNodes": bits.show(placed.memory),
        "devices": {resource: list(ids) for resource, ids in placed.devices.items()},
        "cgroup": None if placed.cgroup is None else str(placed.cgroup),
        "processes": list(one.pids),
    }


def _prometheus(found: "AuditReport") -> None:
    from alignup.cli import terminal  # noqa: PLC0415 - see above

    terminal.write_document("".join(f"{line}\n" for line in _metrics(found)))


def _metrics(found: "AuditReport") -> Iterator[str]:
    from alignup.enforce.audit import DriftKind  # noqa: PLC0415 - see above

    yield "# HELP alignup_runs Runs that go on."
    yield "# TYPE alignup_runs gauge"
    yield f"alignup_runs {len(found.runs)}"
    yield "# HELP alignup_run_drift Things of a run that are not where they were placed."
    yield "# TYPE alignup_run_drift gauge"
    kinds = [kind for kind in DriftKind if kind is not DriftKind.STRAY]
    for run in found.runs:
        for kind in kinds:
            count = sum(one.uid == run.intent.uid and one.kind is kind for one in found.drifts)
            yield f'alignup_run_drift{{run="{run.intent.uid}",name="{_label(run.intent.name)}",kind="{kind}"}} {count}'
    if not found.runtime:
        return
    yield "# HELP alignup_audited_containers Containers of an agent that run, and were looked at."
    yield "# TYPE alignup_audited_containers gauge"
    yield f"alignup_audited_containers {len(found.containers)}"
    yield "# HELP alignup_strays Sandboxes of pods that nobody knows."
    yield "# TYPE alignup_strays gauge"
    yield f"alignup_strays {sum(one.kind is DriftKind.STRAY for one in found.drifts)}"
    yield "# HELP alignup_container_drift Things of a container that are not where they were placed."
    yield "# TYPE alignup_container_drift gauge"
    for placed in (one.container for one in found.containers):
        namespace, _, name = placed.pod.partition("/")
        whose = {"uid": placed.uid, "namespace": namespace, "pod": name, "container": placed.container}
        labels = ",".join(f'{key}="{_label(value)}"' for key, value in whose.items())
        for kind in kinds:
            about = [one for one in found.drifts if one.kind is kind and one.container == placed.container]
            count = sum(one.uid == placed.uid for one in about)
            yield f'alignup_container_drift{{{labels},kind="{kind}"}} {count}'


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_FORMS: dict[str, Callable[["AuditReport"], None]] = {"text": _text, "json": _json, "prometheus": _prometheus}
