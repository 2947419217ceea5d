"""``alignup collect``: gather what explains the decision on a pod of a live cluster into one archive."""

import asyncio
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from alignup.cli import terminal
from alignup.cli.app import InputError, Place, define_command, escape_control
from alignup.cli.cluster_access import (
    AccessOptions,
    ClusterCommand,
    ClusterError,
    PodSelection,
    api_errors,
    ask,
    find_pods,
)
from alignup.cli.completers import complete_cluster_nodes, complete_cluster_pods
from alignup.cli.exit_codes import FAILED
from alignup.cli.object_names import parse_object_names
from alignup.cli.options import NumberRange, flag_option, option, path_option, with_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from alignup.cli.object_names import ObjectName
    from alignup.collect.collection import Collection
    from alignup.collect.collector import Subject
    from alignup.kubernetes.api import ApiClient
    from alignup.kubernetes.api.objects import ApiPod

INCOMPLETE = FAILED
_PERMISSIONS = "It needs permission to get the pod; see docs/first-five-minutes.md for the others."
_NAME_A_POD = "Name one of its pods, or a workload that has pods."


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    node: str | None = option(
        "NAME", "Node to collect from", "that of the pod", "--node", shell_complete=complete_cluster_nodes
    )
    archive: Path | None = path_option("FILE", "Archive to write, readable by you only", "NAMESPACE-POD.tar.gz")
    image: str = option(
        "IMAGE", "Image of the reader; it needs sh, cp, grep, mktemp, tar, gzip and base64", default="busybox:stable"
    )
    reader_namespace: str = option(
        "NAME", "Namespace of the reader; it must allow hostPath volumes", default="kube-system"
    )
    kubelet_dir: str = option("DIR", "Directory of the kubelet on the node", default="/var/lib/kubelet")
    timeout: float = option("SECONDS", "Wait for the reader so long", type=NumberRange(1, 3600), default=120)
    no_reader: bool = flag_option("Never create a reader")
    sub_ids: bool = flag_option("Have the reader mount /etc, and read the kubelet's lines of subuid and subgid there")
    yes: bool = flag_option("Do not ask", "-y", "--yes")
    dry_run: bool = flag_option(
        "Print the requests and the manifest of the reader, and send no more than needed for it"
    )


@define_command(
    "collect",
    "alignup collect trainer-0 -n ml",
    "alignup cluster collect deployment/web --yes",
    cls=ClusterCommand,
)
@click.argument("names", metavar="[POD]...", nargs=-1, shell_complete=complete_cluster_pods)
@with_options("selection", PodSelection)
@with_options("options", CollectOptions)
@with_options("access", AccessOptions)
def command(*, names: tuple[str, ...], selection: PodSelection, options: CollectOptions, access: AccessOptions) -> None:
    """Collect what explains why a pod was rejected, for 'alignup why ARCHIVE' on any machine.

    POD is NAME, NAMESPACE/NAME or pod/NAME. Of a workload, such as deployment/NAME, and of several pods, it is the one
    that was rejected last, or that was created last.

    The archive has the pod, its events, the other pods of its node, claims, the configuration and version of the
    kubelet, the machine, and what the kubelet holds. The last two come from the HostState of the node if 'alignup
    observe' runs there, else from a reader: a pod that is created on the node, prints the topology and the kubelet's
    state files, and is deleted. No secrets are in it: no environment variables, commands, images, volumes or labels.

    First it prints what it will do, and asks. It names what may not be read, and the permission for it.

    The exit code is 0 when 'alignup why' can answer from the archive, 1 when a part that it needs is missing, 2 when
    the input is invalid.
    """
    if not names and not selection.selects:
        raise click.UsageError("Give POD, or select pods with -l or -A.")
    from alignup.collect import collection as archives  # noqa: PLC0415 - not needed for --help

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
            collected = ask(access, partial(_collect, subject=subject))
        except asyncio.CancelledError:  # SIGTERM
            raise KeyboardInterrupt from None
    try:
        archives.write(path, collected)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", place=Place("--archive")) from error
    _finish(path, collected)


def _finish(path: Path, collected: "Collection") -> None:
    """Say what to do with the archive, or what is missing in it."""
    from alignup.collect.collection import missing_inputs  # noqa: PLC0415 - not needed for --help

    terminal.print_line(str(path))
    if lacking := missing_inputs(collected):
        given = " ".join(f"{name} …" for name in lacking.values())
        _say(f"The archive lacks {' and '.join(lacking)}: alignup why {path} {given}")
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


def _print_plan(subject: "Subject", path: Path, say: "Callable[[str], None]") -> None:
    from alignup.collect.collector import LEFT_OUT, plan  # noqa: PLC0415 - not needed for --help

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
    client: "ApiClient", namespace: str, *, words: "Sequence[str]", selection: PodSelection, options: CollectOptions
) -> "Subject":
    from alignup.collect.collector import Subject, find_host_state  # noqa: PLC0415 - slow to import
    from alignup.collect.reader_pod import Reader  # noqa: PLC0415

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


async def _find_pod(
    client: "ApiClient", names: "Sequence[ObjectName]", selection: PodSelection, namespace: str
) -> "ApiPod":
    """Return the pod that is meant; of several, one that was rejected, and the newest."""
    from alignup.collect.collector import pods_of_workload  # noqa: PLC0415 - slow to import
    from alignup.kubernetes.api.known_pods import was_rejected  # noqa: PLC0415

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


async def _collect(client: "ApiClient", _namespace: str, *, subject: "Subject") -> "Collection":
    from alignup.collect.collector import collect  # noqa: PLC0415 - slow to import

    task = asyncio.current_task()
    with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await collect(client, subject, report=_say)
