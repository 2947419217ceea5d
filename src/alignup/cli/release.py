"""``alignup release``: pods are gone, and give back what they had."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import click

from alignup.cli.app import Complaint, debug_option, examples
from alignup.cli.client import AgentError, Where, agent_options, connected
from alignup.cli.options import form_option


@click.command(
    short_help="Release pods: what they had is free again.",
    epilog=examples("alignup release web", "alignup release ml/trainer-0 ml/trainer-1"),
)
@click.argument("pods", nargs=-1, required=True, metavar="POD…")
@agent_options
@form_option("text", "json")
@debug_option
def command(where: Where, pods: tuple[str, ...], form: str) -> None:
    """Release pods: what each POD had is free again, and whoever waits is tried; one that waits no longer does.

    POD is a name, a namespace and name with a slash between them, or a uid. A pod of a manifest directory comes back,
    as long as its file is there. The exit code is 1 when one is not known, 2 when it could be several.
    """
    from alignup.cli import screen, tables  # noqa: PLC0415 - loaded with the command, not with its help

    with connected(where) as agent:
        known = agent.get("/v1/pods")["pods"]
        meant = [_meant(said, known) for said in pods]
        released = [agent.delete(f"/v1/pods/{quote(one['uid'], safe='')}")["pod"] for one in meant]
    if form == "json":
        screen.values({"released": released})
        return
    for one in released:
        what = tables.placed(one["placements"])
        screen.line(f"{one['namespace']}/{one['name']} is released{f': {what}' if what else ''}")


def _meant(said: str, known: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The one pod that somebody calls *said*."""
    found = [one for one in known if said in (one["uid"], one["name"], f"{one['namespace']}/{one['name']}")]
    if not found:
        raise AgentError(f"there is no pod {said}", advice="'alignup ps' shows the pods there are.")
    exact = [one for one in found if one["uid"] == said] or found
    if len(exact) > 1:
        uids = ", ".join(one["uid"] for one in exact)
        raise Complaint(f"{said} could be any of {len(exact)} pods", advice=f"Say which by its uid: {uids}.")
    return exact[0]
