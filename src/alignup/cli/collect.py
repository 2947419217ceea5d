"""``alignup collect``: gather what explains the decision on a pod of a live cluster into one archive."""

from dataclasses import dataclass
from pathlib import Path

import click

from alignup.cli.app import define_command
from alignup.cli.cluster_access import (
    AccessOptions,
    ClusterCommand,
    PodSelection,
)
from alignup.cli.completers import complete_cluster_nodes, complete_cluster_pods
from alignup.cli.options import NumberRange, flag_option, option, path_option, with_options


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
    state files, and is deleted. No secrets are in it: no environment variables, commands, images,
    names of volumes, or labels of pods.

    First it prints what it will do, and asks. It names what may not be read, and the permission for it.

    The exit code is 0 when 'alignup why' can answer from the archive, 1 when a part that it needs is missing, 2 when
    the input is invalid.
    """
    if not names and not selection.selects:
        raise click.UsageError("Give POD, or select pods with -l or -A.")
    from alignup.cli import collect_start  # noqa: PLC0415 - its libraries are extras, and not needed for --help

    collect_start.run(names, selection, options, access)
