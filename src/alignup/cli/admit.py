"""``alignup admit``: send pods to the agent."""

import json
import time

import click

from alignup.align.workload import Pod
from alignup.cli import inputs, terminal
from alignup.cli.agent_client import AgentOptions, connect
from alignup.cli.app import define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import NumberRange, output_option, with_options, workload_argument, workload_option
from alignup.cli.pod_status import describe_placements, full_name
from alignup.kubernetes.manifests.documents import to_json
from alignup.kubernetes.manifests.workloads import Workload
from alignup.web.agent_client import AgentClient, Document, pod_path

REJECTED = FAILED
_POLL_INTERVAL = 0.2  #: seconds between checks of a waiting pod
_EXAMPLE = "alignup admit -f examples/node/trainer.yaml"


@define_command("admit", _EXAMPLE, f"{_EXAMPLE} --dry-run")
@workload_argument
@workload_option
@click.option("--dry-run", is_flag=True, help="Show what the agent would decide; change nothing.")
@click.option(
    "--wait",
    type=NumberRange(0, 86_400),
    default=0.0,
    metavar="SECONDS",
    help="Wait up to SECONDS for waiting pods to be admitted (default: 0).",
)
@with_options("agent", AgentOptions)
@output_option("text", "json", "yaml", "name")
def command(  # noqa: PLR0913 - options
    *, agent: AgentOptions, paths: tuple[str, ...], files: tuple[str, ...], dry_run: bool, wait: float, output: str
) -> None:
    """Send every replica of each workload in FILE to the agent, and print the decisions.

    A pod that is already admitted keeps its resources. The exit code is 0 when all pods are admitted or waiting, 1 when
    one is rejected, is still waiting after --wait, or no agent answers, and 2 when the input is invalid.
    """
    if not (files := (*paths, *files)):
        raise click.UsageError("Give FILE, or -f FILE.")
    workloads, skip_notes = inputs.read_workloads(files)
    terminal.print_notes(skip_notes)
    selected_workloads = inputs.select_workloads(workloads, files=files)
    pods = [(workload, pod) for workload in selected_workloads for pod in workload.pods()]
    client = connect(agent)
    admissions = []
    for workload, pod in pods:
        admissions.append(client.admit(pod_manifest(workload, pod), dry_run=dry_run))
        if output == "text":
            _print_admission(admissions[-1])
        elif output == "name":
            terminal.print_line(f"pod/{pod.name}")
    if wait:
        end = time.monotonic() + wait
        admissions = [_wait(client, admission, end) for admission in admissions]
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, {"admissions": admissions})
    failures = {"rejected", "waiting"} if wait else {"rejected"}
    if any(admission["outcome"] in failures for admission in admissions):
        raise click.exceptions.Exit(REJECTED)


def pod_manifest(workload: Workload, pod: Pod) -> Document:
    """Return *pod*, a replica of *workload*, as a v1 Pod: the manifest with the pod's own name."""
    template = workload.manifest.get("metadata") or {}
    metadata = {name: value for name in ("labels", "annotations") if (value := template.get(name))}
    metadata |= {name: value for name in ("name", "namespace", "uid") if (value := getattr(pod, name))}
    pod_document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": workload.manifest.get("spec")}
    document: Document = json.loads(to_json(pod_document))  # plain numbers
    return document


def _wait(client: AgentClient, admission: Document, end: float) -> Document:
    """Return the admission as it is once the pod is not waiting, or at *end*."""
    while admission["outcome"] == "waiting" and time.monotonic() < end:
        time.sleep(min(_POLL_INTERVAL, max(0.0, end - time.monotonic())))
        pod = client.get(pod_path(admission["pod"]["uid"]))
        outcome = "waiting" if pod["status"] == "waiting" else "admitted"
        answer = {"pod": pod, "decision": pod["decision"], "explanation": pod["explanation"]}
        admission = {**admission, "outcome": outcome, **answer}
    return admission


def _print_admission(admission: Document) -> None:
    decision = admission["decision"]
    name = full_name(decision["pod"])
    verdict = {
        "admitted": "would be admitted" if admission["dryRun"] else "is admitted",
        "kept": "is already admitted",
        "rejected": "would be rejected" if admission["dryRun"] else "is rejected",
        "waiting": "is waiting",
    }.get(admission["outcome"], admission["outcome"])
    rejection = decision["rejection"]
    if rejection is None:
        terminal.print_line(f"{name} {verdict}: {describe_placements(decision['placements'])}")
        return
    position = f" (position {admission['pod']['position']})" if admission["outcome"] == "waiting" else ""
    terminal.print_line(f"{name} {verdict}{position}: {rejection['reason']}: {rejection['message']}")
    for sentence in admission["explanation"][1:]:
        terminal.print_line(f"  {sentence}")
