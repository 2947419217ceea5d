"""``alignup watch``: what an agent does, as it does it."""

import json
from typing import Any

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.client import AgentError, AgentOptions, agent_options, connect
from alignup.cli.options import output_option


@click.command(
    short_help="What an agent does, as it happens.", epilog=examples("alignup watch", "alignup watch -o json")
)
@agent_options
@output_option("text", "json")
@debug_option
def command(where: AgentOptions, form: str) -> None:
    """Watch an agent at work: a line for everything that happens from now on, until Ctrl-C or the agent ends.

    The exit code is 1 when no agent answers, or when it ends.
    """
    from alignup.cli import terminal  # noqa: PLC0415 - loaded with the command, not with its help

    with connect(where) as agent:
        for event in agent.events():
            terminal.print_line(json.dumps(event, ensure_ascii=False) if form == "json" else _line(event))
        raise AgentError(f"the agent at {agent.address} ended", advice="Start it again with 'alignup agent'.")


def _line(event: dict[str, Any]) -> str:
    from alignup.cli import tables  # noqa: PLC0415 - see above

    detail = event["detail"]
    pod = detail.get("pod")
    name = f"{pod['namespace']}/{pod['name']}" if pod else ""
    said = tables.describe_outcome(detail.get("rejection"), detail.get("placements", ()))
    said = said or detail.get("detail", "") or (f"{detail['count']} events" if "count" in detail else "")
    return "  ".join(filter(None, (event["time"], f"{event['kind']:<9}", name, said)))
