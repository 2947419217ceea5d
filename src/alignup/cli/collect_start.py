"""Collect what explains the decision on a pod, as ``alignup collect`` was told."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from alignup.cli import terminal
from alignup.cli.app import InputError, Place, escape_control
from alignup.cli.cluster_access import AccessOptions, ClusterError, PodSelection
from alignup.cli.cluster_client import api_errors, ask, find_pods
from alignup.cli.collect import CollectOptions
from alignup.cli.exit_codes import FAILED
from alignup.cli.object_names import ObjectName, parse_object_names
from alignup.collect import collection as archives
from alignup.collect.collection import Collection, missing_inputs
from alignup.collect.collector import LEFT_OUT, Subject, collect, find_host_state, plan, pods_of_workload
from alignup.collect.reader_pod import Reader
from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.known_pods import was_rejected
from alignup.kubernetes.api.objects import ApiPod

INCOMPLETE = FAILED
_PERMISSIONS = "It needs permission to get the pod; see docs/first-five-minutes.md for the others."
_NAME_A_POD = "Name one of its pods, or a workload that has pods."


def run(names: Sequence[str], selection: PodSelection, options: CollectOptions, access: AccessOptions) -> None:
    with api_errors(_PERMISSIONS), terminal.waiting_message("Reading the pod"):
        subject = ask(access, partial(_find_subject, words=names, selection=selection, options=options))
    metadata = subject.pod.metadata
    path = options.archive or Path(f"{metadata.namespace}-{metadata.name}.tar.gz")
    if options.dry_run:
        _print_plan(subject, path, click.echo)
        if subject.reader and subject.host_state is None:
            terminal.print_line("---")
            terminal.print_as("yaml", subject.reader.manifest())
        return
    _check_target(path)
    _print_plan(subject, path, _say)
    if not options.yes:
        _confirm()
    with api_errors(_PERMISSIONS):
        try:
            collection = ask(access, partial(_collect, subject=subject))
        except asyncio.CancelledError:  # SIGTERM
            raise KeyboardInterrupt from None
    try:
        archives.write(path, collection)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", place=Place("--archive")) from error
    _finish(path, collection)


def _finish(path: Path, collection: Collection) -> None:
    """Say what to do with the archive, or what is missing in it."""
    terminal.print_line(str(path))
    if inputs := missing_inputs(collection):
        options = " ".join(f"{name} …" for name in inputs.values())
        _say(f"The archive lacks {' and '.join(inputs)}: alignup why {path} {options}")
        raise click.exceptions.Exit(INCOMPLETE)
    _say(f"Explain it on any machine with: alignup why {path}")


def _say(text: str) -> None:
    for line in text.splitlines():
        click.echo(escape_control(line), err=True)


def _confirm() -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError(
            "nothing was sent: standard input is not a terminal", advice="Add --yes to go on without a question."
        )
    if not click.confirm("Go on?", err=True):
        raise click.exceptions.Exit(FAILED)


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a directory", place=Place("--archive"), advice="Give a file.")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: No such directory", place=Place("--archive"))


def _print_plan(subject: Subject, path: Path, say: Callable[[str], None]) -> None:
    lines = [f"About pod {subject.pod.metadata.full_name} on node {subject.node}, this will be sent to the API server:"]
    for step in plan(subject):
        lines += [f"  {request}" for request in step.requests]
    reader = subject.reader
    if subject.host_state is None and reader is not None:
        etc = ", the kubelet's lines of /etc/subuid and /etc/subgid" if reader.sub_ids else ""
        lines.append(
            f"Since {subject.why_not}, it creates pod {reader.namespace}/{reader.name} with image {reader.image} on "
            f"that node; the pod prints /sys, /proc{etc} and the state files in {reader.kubelet_dir}, and is deleted "
            "then."
        )
    lines.append(f"It writes {path}, without {LEFT_OUT}.")
    for line in lines:
        say(line if line.startswith(" ") else click.wrap_text(line, terminal.width()))


async def _find_subject(
    client: ApiClient, namespace: str, *, words: Sequence[str], selection: PodSelection, options: CollectOptions
) -> Subject:

    names = parse_object_names(words, "" if selection.all_namespaces else selection.namespace or namespace)
    pod = await _find_pod(client, names, selection, namespace)
    node = options.node or pod.spec.node_name
    if not node:
        message = f"pod {pod.metadata.full_name} is not on a node yet"
        raise ClusterError(message, advice="Name a node with --node, or ask all of them with 'alignup cluster why'.")
    state, why_not = await find_host_state(client, node, now=client.timing.time_of_day())
    reader = Reader(
        node=node,
        image=options.image,
        namespace=options.reader_namespace,
        kubelet_dir=options.kubelet_dir,
        seconds=options.timeout,
        sub_ids=options.sub_ids,
    ).named()
    return Subject(
        pod=pod, node=node, host_state=state, why_not=why_not, reader=None if options.no_reader or state else reader
    )


async def _find_pod(client: ApiClient, names: Sequence[ObjectName], selection: PodSelection, namespace: str) -> ApiPod:
    """Return the pod that is meant; of several, rejected pods come first, then bound pods, then the newest."""
    pods = []
    for name in names:
        if name.kind != "Pod":
            pods += await pods_of_workload(client, name.kind, name.namespace, name.name)
    if selection.selects or any(name.kind == "Pod" for name in names):
        pods += await find_pods(client, [name for name in names if name.kind == "Pod"], selection, namespace)
    if not pods:
        raise ClusterError(f"{names[0].kind.lower()} {names[0].name} has no pods", advice=_NAME_A_POD)
    return max(
        pods, key=lambda pod: (was_rejected(pod), bool(pod.spec.node_name), pod.metadata.creation_timestamp or "")
    )


async def _collect(client: ApiClient, _namespace: str, *, subject: Subject) -> Collection:
    task = asyncio.current_task()
    with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await collect(client, subject, report=_say)
