"""``alignup watch``: print the agent's events as they happen."""

import json

from alignup.cli import terminal
from alignup.cli.agent_client import AgentOptions, connect
from alignup.cli.app import FailureError, define_command
from alignup.cli.options import output_option, with_options
from alignup.cli.pod_status import describe_outcome, full_name
from alignup.web.agent_client import Document


@define_command("watch", "alignup watch", "alignup watch -o json")
@with_options("agent", AgentOptions)
@output_option("text", "json", "yaml")
def command(agent: AgentOptions, output: str) -> None:
    """Print a line for every event from now on, until Ctrl-C or until the agent stops.

    The exit code is 1 when no agent answers, or when it stops.
    """
    client = connect(agent)
    for event in client.events():
        if output == "yaml":
            terminal.print_line("---")
            terminal.print_as(output, event)
        else:
            terminal.print_line(json.dumps(event, ensure_ascii=False) if output == "json" else _line(event))
    raise FailureError(f"the agent at {client.address} stopped", advice="Start it again with 'alignup agent'.")


def _line(event: Document) -> str:
    detail = event["detail"]
    name = full_name(detail["pod"]) if detail.get("pod") else ""
    text = describe_outcome(detail.get("rejection"), detail.get("placements", ()))
    text = text or detail.get("detail", "") or (f"{detail['count']} events" if "count" in detail else "")
    return "  ".join(filter(None, (event["time"], f"{event['kind']:<9}", name, text)))
