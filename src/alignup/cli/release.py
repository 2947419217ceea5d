"""``alignup release``: release pods and free their resources."""

import time

import click

from alignup.cli import terminal
from alignup.cli.agent_client import AgentOptions, connect, pod_path
from alignup.cli.app import define_command
from alignup.cli.completers import complete_agent_pods
from alignup.cli.options import output_option, with_options
from alignup.cli.pod_status import describe_placements, find_pod, full_name, is_terminating

_MIN_POLL, _MAX_POLL = 0.05, 1.0  #: seconds between checks of a terminating pod


@define_command("release", "alignup release web", "alignup release ml/trainer-0 ml/trainer-1")
@click.argument("pods", nargs=-1, required=True, metavar="POD…", shell_complete=complete_agent_pods)
@click.option(
    "--grace",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    help="Kill containers that have not stopped after SECONDS (default: the pod's terminationGracePeriodSeconds).",
)
@click.option("--wait/--no-wait", "waits", default=True, help="Wait until all containers are gone (default: wait).")
@with_options("agent", AgentOptions)
@output_option("text", "json")
def command(*, agent: AgentOptions, pods: tuple[str, ...], grace: int | None, waits: bool, output: str) -> None:
    """Release each POD: free its resources, and retry the waiting pods. A waiting POD leaves the queue.

    POD is a name, a namespace/name, or a uid. A pod from a manifest directory comes back as long as its file is there.
    The exit code is 1 when a pod does not exist, 2 when POD matches several pods.
    """
    client = connect(agent)
    known = client.pods()
    found = [find_pod(name, known) for name in pods]
    released = [client.delete(pod_path(pod["uid"]), grace=grace)["pod"] for pod in found]
    terminating = [pod for pod in released if is_terminating(pod)]
    if waits and terminating:
        with terminal.waiting_message(f"{', '.join(map(full_name, terminating))}: stopping containers"):
            pause = _MIN_POLL
            for pod in terminating:  # one whose manifest is still there may already run again
                while is_terminating(client.pod(pod["uid"])):
                    time.sleep(pause)
                    pause = min(2 * pause, _MAX_POLL)
    if output == "json":
        terminal.print_json({"released": released})
        return
    for pod in released:
        placement = describe_placements(pod["placements"])
        verb = "is terminating" if pod in terminating and not waits else "is released"
        terminal.print_line(f"{full_name(pod)} {verb}{f': {placement}' if placement else ''}")
