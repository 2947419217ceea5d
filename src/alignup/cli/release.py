"""``alignup release``: release pods and free their resources."""

import click

from alignup.cli import terminal
from alignup.cli.agent_client import AgentOptions, connect
from alignup.cli.app import FailureError, define_command
from alignup.cli.completers import complete_agent_pods
from alignup.cli.options import output_option, with_options
from alignup.cli.pod_status import AgentPodOptions, describe_placements, full_name, select_pods
from alignup.web.agent_client import pod_path


@define_command("release", "alignup release web", "alignup release ml/trainer-0 ml/trainer-1")
@click.argument("pods", nargs=-1, metavar="[POD]...", shell_complete=complete_agent_pods)
@with_options("selection", AgentPodOptions)
@with_options("agent", AgentOptions)
@output_option("text", "json", "yaml", "name")
def command(*, agent: AgentOptions, pods: tuple[str, ...], selection: AgentPodOptions, output: str) -> None:
    """Release each POD: free its resources, and retry the waiting pods. A waiting POD leaves the queue.

    POD is a name, a namespace/name, pod/name, or a uid; deployment/NAME and the like stand for the pods NAME-0, NAME-1
    and so on. With -l alone, it is every pod with these labels. A pod from a manifest directory comes back as long as
    its file is there. The exit code is 1 when a pod does not exist, 2 when POD matches several pods.
    """
    if not pods and selection.selector is None:
        raise click.UsageError("Give POD, or select pods with -l.")
    client = connect(agent)
    selected_pods = select_pods(pods, client.pods(), selection)
    if not selected_pods:
        raise FailureError("no such pods found", advice="List the pods with 'alignup ps', with the same options.")
    released_pods = [client.delete(pod_path(pod["uid"]))["pod"] for pod in selected_pods]
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, {"released": released_pods})
        return
    for pod in released_pods:
        if output == "name":
            terminal.print_line(f"pod/{pod['name']}")
            continue
        placement = describe_placements(pod["placements"])
        terminal.print_line(f"{full_name(pod)} is released{f': {placement}' if placement else ''}")
