"""``alignup admit``: send pods to an agent."""

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import AgentClient, AgentOptions, agent_options, connect
from alignup.cli.options import output_option, workload_option

if TYPE_CHECKING:
    from alignup.align.workload import Pod

REJECTED = 1
_EVERY = 0.2  #: seconds between looks at a pod that waits


@click.command(
    short_help="Send pods to an agent.",
    epilog=examples(
        "alignup admit -f examples/node/trainer.yaml",
        "alignup admit -f examples/node/trainer.yaml --dry-run",
    ),
)
@workload_option()
@click.option("--dry-run", is_flag=True, help="Only ask what would become of them; nothing changes.")
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    metavar="SECONDS",
    help="How long to wait for pods that the agent lets wait.",
)
@agent_options
@output_option("text", "json")
@debug_option
def command(
    *,
    where: AgentOptions,
    files: tuple[str, ...],
    dry_run: bool,
    seconds: float,
    form: str,
) -> None:
    """Send pods to an agent, every replica of each workload in FILE, and show what became of them.

    A pod that is there already keeps what it has. The exit code is 0 when all are admitted or may wait, 1 when one is
    refused, still waits after --wait, or no agent answers, 2 when something given cannot be used.
    """
    from alignup.cli import inputs, terminal  # noqa: PLC0415 - loaded with the command, not with its help

    workloads, skipped = inputs.read_workloads(files, keep=True)
    inputs.print_notes(skipped)
    pods = [pod for work in inputs.select_workloads(workloads, None, files=files) for pod in work.pods()]
    with connect(where) as agent:
        answers = [_admitted(agent, pod, dry_run=dry_run, text=form == "text") for pod in pods]
        if seconds:
            answers = _awaited(agent, answers, seconds=seconds)
    if form == "json":
        terminal.print_json({"admissions": answers})
    late = {"rejected", "waiting"} if seconds else {"rejected"}
    if any(answer["outcome"] in late for answer in answers):
        raise click.exceptions.Exit(REJECTED)


def _admitted(agent: AgentClient, pod: "Pod", *, dry_run: bool, text: bool) -> dict[str, Any]:
    answer = agent.admit(pod, dry_run=dry_run)
    if text:
        _show(answer)
    return answer


def _awaited(agent: AgentClient, answers: list[dict[str, Any]], *, seconds: float) -> list[dict[str, Any]]:
    """The answers, after those that wait have had *seconds* to be let in."""
    end = time.monotonic() + seconds
    settled = []
    for answer in answers:
        latest = answer
        while latest["outcome"] == "waiting" and time.monotonic() < end:
            time.sleep(min(_EVERY, max(0.0, end - time.monotonic())))
            found = agent.get(f"/v1/pods/{quote(answer['pod']['uid'], safe='')}")
            outcome = "waiting" if found["status"] == "waiting" else "admitted"
            latest = {
                **answer,
                "outcome": outcome,
                "pod": found,
                "decision": found["decision"],
                "story": found["story"],
            }
        settled.append(latest)
    return settled


def _show(answer: dict[str, Any]) -> None:
    """One line for what became of a pod; for a refusal all that did not fit."""
    from alignup.cli import inputs, tables, terminal  # noqa: PLC0415 - see above

    decision = answer["decision"]
    name = f"{decision['pod']['namespace']}/{decision['pod']['name']}"
    verdict = {
        "admitted": "would be admitted" if answer["dryRun"] else "is admitted",
        "kept": "is there already",
        "waiting": "waits",
        "rejected": "would be refused" if answer["dryRun"] else "is refused",
    }.get(answer["outcome"], answer["outcome"])
    refusal = decision["rejection"]
    if refusal is None:
        terminal.print_line(f"{name} {verdict}: {tables.describe_placements(decision['placements'])}")
        run = (answer["pod"] or {}).get("run") or {"warnings": ()}
        inputs.print_notes(tuple(f"{name}: {what}" for what in run["warnings"]))
        return
    place = f", number {answer['pod']['position']} in line" if answer["outcome"] == "waiting" else ""
    terminal.print_line(f"{name} {verdict}{place}: {refusal['reason']}: {refusal['message']}")
    for sentence in answer["story"][1:]:
        terminal.print_line(f"  {sentence}")
