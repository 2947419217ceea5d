"""``alignup release``: pods are gone, and give back what they had."""

import time
from collections.abc import Iterable
from typing import Any

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import AgentClient, AgentOptions, agent_options, connect
from alignup.cli.options import output_option

_SOONEST, _LATEST = 0.05, 1.0  #: seconds between looks at a pod that ends


@click.command(
    short_help="Release pods: what they had is free again.",
    epilog=examples("alignup release web", "alignup release ml/trainer-0 ml/trainer-1"),
)
@click.argument("pods", nargs=-1, required=True, metavar="POD…")
@click.option(
    "--grace",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    help="How long containers have to stop before they are killed; as long as the pod says unless given.",
)
@click.option(
    "--wait/--no-wait", "waits", default=True, show_default=True, help="Wait until all its containers are gone."
)
@agent_options
@output_option("text", "json")
@debug_option
def command(*, where: AgentOptions, pods: tuple[str, ...], grace: int | None, waits: bool, form: str) -> None:
    """Release pods: what each POD had is free again, and whoever waits is tried; one that waits no longer does.

    POD is a name, a namespace and name with a slash between them, or a uid. A pod of a manifest directory comes back,
    as long as its file is there. The exit code is 1 when one is not known, 2 when it could be several.
    """
    from alignup.cli import tables, terminal  # noqa: PLC0415 - loaded with the command, not with its help
    from alignup.cli.pod_status import find_pod, full_name, is_terminating, pod_path  # noqa: PLC0415

    with connect(where) as agent:
        known = agent.get("/v1/pods")["pods"]
        told = [agent.delete(pod_path(one), grace=grace)["pod"] for one in [find_pod(said, known) for said in pods]]
        ending = [one for one in told if is_terminating(one)]
        if waits and ending:
            names = ", ".join(map(full_name, ending))
            with terminal.waiting_message(f"{names}: containers are told to stop"):
                _until_gone(agent, ending)
    if form == "json":
        terminal.print_json({"released": told})
        return
    for one in told:
        what = tables.describe_placements(one["placements"])
        verdict = "ends" if one in ending and not waits else "is released"
        terminal.print_line(f"{full_name(one)} {verdict}{f': {what}' if what else ''}")


def _until_gone(agent: AgentClient, ending: Iterable[dict[str, Any]]) -> None:
    """Wait for pods to end; one that is back, as its manifest is still there, has ended before."""
    from alignup.cli.pod_status import is_terminating, pod_path  # noqa: PLC0415 - see above

    pause = _SOONEST
    for one in ending:
        while is_terminating(agent.find(pod_path(one))):
            time.sleep(pause)
            pause = min(2 * pause, _LATEST)
