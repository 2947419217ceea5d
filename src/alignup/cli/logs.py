"""``alignup logs``: print the logs of a container."""

import sys
from dataclasses import dataclass

import click

from alignup.cli.agent_client import AgentOptions, connect, pod_path
from alignup.cli.app import define_command
from alignup.cli.completers import complete_agent_pods
from alignup.cli.options import flag_option, option, with_options
from alignup.cli.pod_status import find_pod


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    container: str | None = option(
        "NAME", "Print the log of this container", "the first app container", "-c", "--container"
    )
    follow: bool = flag_option("Follow the log until the container ends", "-f", "--follow")
    previous: bool = flag_option("Print the log of the previous instance of the container", "-p", "--previous")
    tail: int | None = option("N", "Print only the last N lines", "all", type=click.IntRange(min=0))
    timestamps: bool = flag_option("Print a timestamp before each line")


@define_command("logs", "alignup logs web", "alignup logs ml/trainer-0 -c train --tail 20 -f")
@click.argument("pod", metavar="POD", shell_complete=complete_agent_pods)
@with_options("options", LogOptions)
@with_options("agent", AgentOptions)
def command(*, agent: AgentOptions, pod: str, options: LogOptions) -> None:
    """Print the log of a container of POD, which is a name, a namespace/name, or a uid.

    The exit code is 1 when no agent answers, or when the pod, container or log does not exist, and 2 when POD matches
    several pods.
    """
    client = connect(agent)
    query = {name: "true" for name in ("follow", "previous", "timestamps") if getattr(options, name)}
    path = f"{pod_path(find_pod(pod, client.pods())['uid'])}/logs"
    for chunk in client.stream(path, container=options.container or None, tail=options.tail, **query):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
