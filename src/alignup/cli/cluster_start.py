"""Answer ``alignup cluster why``, ``alignup cluster nodes`` and ``alignup cluster upgrade-check``."""

from functools import partial

import click

from alignup.cli import cluster_client, cluster_output, cluster_reading, inputs, terminal
from alignup.cli.cluster import NOT_ADMITTED, PodOptions
from alignup.cli.cluster_access import AccessOptions, ClusterError
from alignup.cli.exit_codes import FAILED
from alignup.schedule.cluster_snapshot import incomplete_release, summarize


def explain_pods(
    names: tuple[str, ...], pod_options: PodOptions, access: AccessOptions, *, search: float, output: str
) -> None:
    version = pod_options.kubernetes_version
    notes = () if version is None else inputs.read_release(version)[1]
    workloads, skip_notes = inputs.read_workloads(pod_options.files) if pod_options.files else ((), ())
    if pod_options.files:
        workloads = tuple(inputs.select_workloads(workloads, files=pod_options.files))
    with cluster_client.api_errors(), terminal.waiting_message("Reading the cluster"):
        view, pods, stored_workloads = cluster_client.ask(
            access, partial(cluster_reading.read_question, words=names, options=pod_options)
        )
    terminal.print_notes(dict.fromkeys((*notes, *skip_notes, *view.notes, *cluster_output.doubt_notes(view))))
    with terminal.waiting_message("Searching for changes that would admit it"):
        questions = list(cluster_output.ask_about_workloads(view, (*workloads, *stored_workloads), seconds=search))
        for pod, reports in pods:
            questions.append(cluster_output.ask_about_pod(view, pod, seconds=search, reports=reports))
    if output in terminal.DOCUMENTS:
        document = cluster_output.answers_document(questions, incomplete_release(view.cluster))
        terminal.print_as(output, document)
    elif output == "wide":
        cluster_output.print_wide_answers(questions)
    elif output == "name":
        cluster_output.print_admitting_nodes(questions)
    else:
        cluster_output.print_answers(questions)
    if not all(question.admitted for question in questions):
        raise click.exceptions.Exit(NOT_ADMITTED)


def list_nodes(names: tuple[str, ...], access: AccessOptions, *, output: str) -> None:
    with cluster_client.api_errors(), terminal.waiting_message("Reading the cluster"):
        view = cluster_client.ask(access, cluster_reading.read_view)
    if bad_names := [name for name in names if name not in view.nodes]:
        raise ClusterError(f"node {', '.join(bad_names)} not found", advice="List the nodes with 'kubectl get nodes'.")
    terminal.print_notes(view.notes)
    summaries = [summarize(view, name) for name in dict.fromkeys(names or sorted(view.nodes))]
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, cluster_output.nodes_document(summaries))
    elif output == "name":
        for summary in summaries:
            terminal.print_line(f"node/{summary.node}")
    elif summaries:
        cluster_output.print_nodes(summaries, wide=output == "wide")
    else:
        click.echo("No nodes found.", err=True)


def check_upgrade(version: str, access: AccessOptions, *, output: str) -> None:
    release, notes = inputs.read_release(version, option="--to")
    terminal.print_notes(notes)
    with cluster_client.api_errors(), terminal.waiting_message("Reading the cluster"):
        upgrades = cluster_client.ask(access, partial(cluster_reading.read_upgrades, release=release))
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, cluster_output.upgrades_document(upgrades, release))
    else:
        cluster_output.print_upgrades(upgrades, release)
    if not all(upgrade.safe for upgrade in upgrades):
        raise click.exceptions.Exit(FAILED)
