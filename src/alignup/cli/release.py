"""``alignup release``: release pods and free their resources."""

import click

from alignup.cli import terminal
from alignup.cli.agent_client import AgentOptions, connect
from alignup.cli.app import define_command
from alignup.cli.completers import complete_agent_pods
from alignup.cli.options import output_option, with_options
from alignup.cli.pod_status import describe_placements, find_pod, full_name
from alignup.web.agent_client import pod_path


@define_command("release", "alignup release web", "alignup release ml/trainer-0 ml/trainer-1")
@click.argument("pods", nargs=-1, required=True, metavar="POD…", shell_complete=complete_agent_pods)
@click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace of the pods (default: any).")
@with_options("agent", AgentOptions)
@output_option("text", "json", "yaml", "name")
def command(*, agent: AgentOptions, pods: tuple[str, ...], namespace: str, output: str) -> None:
    """Release each POD: free its resources, and retry the waiting pods. A waiting POD leaves the queue.

    POD is a name, a namespace/name, pod/name, or a uid. A pod from a manifest directory comes back as long as its file
    is there. The exit code is 1 when a pod does not exist, 2 when POD matches several pods.
    """
    client = connect(agent)
    known = client.pods()
    selected = [find_pod(name, known, namespace) for name in pods]
    released = [client.delete(pod_path(pod["uid"]))["pod"] for pod in selected]
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, {"released": released})
        return
    for pod in released:
        if output == "name":
            terminal.print_line(f"pod/{pod['name']}")
            continue
        placement = describe_placements(pod["placements"])
        terminal.print_line(f"{full_name(pod)} is released{f': {placement}' if placement else ''}")
