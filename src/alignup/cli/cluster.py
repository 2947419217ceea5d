"""``alignup cluster``: ask the nodes of a cluster about a pod, and list what they have left.

``kubectl alignup`` is the same: the package installs ``kubectl-alignup``.
"""

from dataclasses import dataclass
from pathlib import Path

import click

from alignup.cli import collect
from alignup.cli.app import COMMANDS, DEBUG_OPTION, VERSION_OPTION, define_command, examples
from alignup.cli.cluster_access import AccessOptions, ClusterCommand, ClusterGroup, PodSelection
from alignup.cli.completers import complete_cluster_nodes, complete_cluster_pods, complete_files
from alignup.cli.exit_codes import FAILED
from alignup.cli.object_names import parse_object_names
from alignup.cli.options import (
    IntegerRange,
    PlanOptions,
    count_option,
    flag_option,
    option,
    output_option,
    path_option,
    plugin_rule_option,
    search_option,
    with_options,
    workload_field,
)

NOT_ADMITTED = FAILED


@click.group(
    cls=ClusterGroup,
    short_help=COMMANDS["cluster"],
    epilog=examples("alignup cluster why trainer-0 -n ml", "alignup cluster nodes"),
    params=[VERSION_OPTION, DEBUG_OPTION],
)
def command() -> None:
    """Ask the nodes of a cluster about a pod, and list what they have left.

    The cluster is that of kubectl: --kubeconfig, KUBECONFIG or ~/.kube/config, and its current context. 'kubectl
    alignup' is the same as 'alignup cluster'. Everything is read; nothing is changed,
    except that collect may create a pod, which it deletes.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions(PodSelection):
    files: tuple[str, ...] = workload_field()
    kubernetes_version: str | None = option(
        "VERSION", "Decide as kubelets of this Kubernetes release do", "that of each Node object"
    )
    plugin_rules: tuple[str, ...] = plugin_rule_option("any devices near the chosen NUMA nodes")


@define_command(
    "why",
    "alignup cluster why trainer-0 -n ml",
    "alignup cluster why deployment/web",
    "alignup cluster why -l app=web -A",
    "alignup cluster why -f examples/node/trainer.yaml -o wide",
    cls=ClusterCommand,
    summary="Explain which nodes admit a pod, and what would admit it elsewhere",
)
@click.argument("names", metavar="[POD]...", nargs=-1, shell_complete=complete_cluster_pods)
@with_options("pod_options", PodOptions)
@with_options("access", AccessOptions)
@search_option("the pod where it is rejected")
@output_option("text", "wide", "json", "yaml", "name")
def why(*, names: tuple[str, ...], pod_options: PodOptions, access: AccessOptions, search: float, output: str) -> None:
    """Explain for every node whether its kubelet would admit a pod, where it would go, and what would admit it.

    POD is a pod of the cluster, pending or rejected: NAME, NAMESPACE/NAME or pod/NAME; deployment/NAME and the like
    stand for a workload. With -f, it is every workload in FILE, which need not exist yet. Of a workload: how many of
    its pods fit together, and one of each template in detail. Nodes that answer alike are listed together. What a
    kubelet holds is known from the HostState that 'alignup observe' publishes on each node. A node is not considered
    if it is unschedulable, or if its taints, the node selector or the required node affinity of the pod exclude it.

    The exit code is 0 when a node that is considered admits each pod and all pods of a workload fit together, 1 when
    not or when the cluster does not answer, and 2 when the input is invalid.
    """
    if (bool(names) or pod_options.selects) is bool(pod_options.files):
        raise click.UsageError("Give either POD or -f FILE.")
    if pod_options.selects and any(name.kind != "Pod" for name in parse_object_names(names)):
        raise click.UsageError("-A and -l select pods: name no workloads with them.")
    from alignup.cli import cluster_start  # noqa: PLC0415 - its libraries are extras, and not needed for --help

    cluster_start.explain_pods(names, pod_options, access, search=search, output=output)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentOptions:
    defragment: bool = flag_option("Let more pods like the one of --shape fit")
    shape: str | None = option("FILE", "Manifest of a pod or workload, for --defragment", shell_complete=complete_files)
    max_moves: int = count_option(20, "Most moves of --defragment", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """Where the cluster is, if not behind an API server."""

    archives: tuple[str, ...] = option(
        "FILE",
        "Plan for the nodes in this archive of 'alignup collect', and in others given",
        "",
        "--archive",
        multiple=True,
        shell_complete=complete_files,
    )
    cluster: Path | None = path_option(
        "FILE", "Plan for a simulated cluster at peak demand: groups of nodes as for 'alignup simulate', or openb"
    )
    trace: Path | None = path_option("FILE", "Pods of the simulated cluster, as for 'alignup simulate'")
    strategy: str = option("NAME", "Strategy of the simulated cluster's scheduler", default="alignup")
    stay: bool = flag_option("Keep all pods of the simulated cluster running")

    @property
    def given(self) -> bool:
        if bool(self.cluster) is not bool(self.trace):
            raise click.UsageError("Give --cluster FILE and --trace FILE together.")
        if self.archives and self.cluster:
            raise click.UsageError("Give either --archive or --cluster.")
        return bool(self.archives or self.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    apply: bool = flag_option("Create a Plan object, which 'alignup schedule --plans' carries out")
    name: str | None = option("NAME", "Name of the Plan object", "one that the API server completes")
    deadline: int | None = option("SECONDS", "Stop the Plan after this time", "1800", type=IntegerRange(1, 86_400))

    def check(self, *, live: bool) -> None:
        if not self.apply and (self.name is not None or self.deadline is not None):
            raise click.UsageError("Give --name and --deadline with --apply.")
        if self.apply and not live:
            raise click.UsageError("--apply is for a live cluster: leave out --archive and --cluster.")


@define_command(
    "plan",
    "alignup cluster plan trainer-0 -n ml",
    "alignup cluster plan -f examples/node/trainer.yaml --allow-preemption --exempt kube-system",
    "alignup cluster plan --defragment --shape examples/node/trainer.yaml --max-moves 20",
    "alignup cluster plan -f job.yaml --archive host-a.tar.gz --archive host-b.tar.gz",
    "alignup cluster plan -f examples/node/trainer.yaml --cluster examples/fleet/training.yaml --trace pods.csv",
    "alignup cluster plan deployment/trainer -n ml --apply --deadline 3600",
    cls=ClusterCommand,
    summary="Find the fewest pods to move so that the nodes admit a pod or a gang",
)
@click.argument("names", metavar="[POD]...", nargs=-1, shell_complete=complete_cluster_pods)
@with_options("pod_options", PodOptions)
@with_options("access", AccessOptions)
@with_options("options", PlanOptions)
@with_options("more", DefragmentOptions)
@with_options("source", PlanSource)
@with_options("creation", ApplyOptions)
@output_option("text", "json", "yaml")
def plan(  # noqa: PLR0913 - options
    *,
    names: tuple[str, ...],
    pod_options: PodOptions,
    access: AccessOptions,
    options: PlanOptions,
    more: DefragmentOptions,
    source: PlanSource,
    creation: ApplyOptions,
    output: str,
) -> None:
    """Find the fewest pods to move so that the nodes admit a pod, or all pods of a gang.

    POD is a pod that waits or was rejected, with all pods of its group that wait; deployment/NAME and the like stand
    for all pods of a workload, and so does -f FILE. A move evicts a pod that its controller creates again, and proves
    where the new pod goes at that moment. With --allow-preemption, pods of lower priority may also end without a new
    place. Every step is decided; nothing is changed without --apply.

    With --apply, the pods must exist, and all of them are planned together. A Plan object is created, and 'alignup
    schedule --plans' carries it out: it decides again before each step, and stops where the cluster is no longer as
    it was planned for. The commands that follow and cancel it are printed.

    With --archive or --cluster, new places are proved among the nodes of archives or of a simulation. Then POD waits
    there; without POD and -f, the plan is for the pods that archives are about.

    With --defragment, find moves that let as many more pods like the one of --shape fit as possible, and list how many
    each number of moves brings.

    Never evicted: pods that PodDisruptionBudgets forbid now, static pods, pods of DaemonSets, of Jobs that count an
    eviction as a failure, of exempt namespaces, without a controller, with local volumes, with ResourceClaims, with
    cluster-autoscaler.kubernetes.io/safe-to-evict: "false" or topology.alignup.dev/never-move. A PodGroup that is
    disrupted as a whole moves whole or not at all.

    The exit code is 0 when there is a plan, 1 when there is none or the cluster does not answer, and 2 when the input
    is invalid.
    """
    if more.defragment is not bool(more.shape):
        raise click.UsageError("Give --defragment and --shape FILE together.")
    questions = (bool(names) or pod_options.selects) + bool(pod_options.files) + more.defragment
    if questions > 1 or (not questions and not source.archives):
        raise click.UsageError("Give either POD, -f FILE, or --defragment --shape FILE.")
    creation.check(live=not source.given)
    from alignup.cli import cluster_plan_output, plan_creation, plan_sources  # noqa: PLC0415 - its libraries are extras, and not needed for --help

    files = pod_options.files or ((more.shape,) if more.shape else ())
    question = plan_sources.read_question(source, access, pod_options, names, files)
    if more.defragment:
        answer = cluster_plan_output.defragment(question, options, max_moves=more.max_moves)
    else:
        if creation.apply:
            question = plan_creation.with_existing_pods(question, access, pod_options)
        answer = cluster_plan_output.answer_plans(question, options)
    if creation.apply:
        plan_creation.create_and_print(access, question, answer, options, creation, output=output)
    else:
        cluster_plan_output.print_answer(answer, output)
    if not answer.feasible and (creation.apply or not more.defragment):
        raise click.exceptions.Exit(NOT_ADMITTED)


@define_command(
    "nodes",
    "alignup cluster nodes",
    "alignup cluster nodes host-a host-b -o wide",
    cls=ClusterCommand,
    summary="List nodes with their policies, what is free, and what still fits",
)
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=complete_cluster_nodes)
@with_options("access", AccessOptions)
@output_option("text", "wide", "json", "yaml", "name")
def nodes(*, names: tuple[str, ...], access: AccessOptions, output: str) -> None:
    """List nodes: the policy, what is free on each NUMA node, and the largest request that still fits on one.

    The largest request of each resource is that of a container with little of everything else. Pods that are bound and
    that the kubelet has not admitted yet count as admitted; terminating pods hold their resources.
    """
    from alignup.cli import cluster_start  # noqa: PLC0415 - its libraries are extras, and not needed for --help

    cluster_start.list_nodes(names, access, output=output)


@define_command(
    "upgrade-check",
    "alignup cluster upgrade-check --to 1.37",
    cls=ClusterCommand,
    summary="Say which running pods kubelets of another release would reject",
)
@click.option("--to", "version", metavar="VERSION", required=True, help="Release of the new kubelets, such as 1.37.")
@with_options("access", AccessOptions)
@output_option("text", "json", "yaml")
def upgrade_check(*, version: str, access: AccessOptions, output: str) -> None:
    """Say what kubelets of another release would make of the nodes: which running pods they reject or place elsewhere.

    A kubelet that starts admits the pods that run once more, the oldest first. The release of each present kubelet is
    that of its Node object. What a node holds is known from its HostState; settings that do not affect alignment are
    not in it: check those with 'alignup upgrade-check' and the files of a node.

    The exit code is 0 when nothing breaks, 1 when something does or cannot be checked, 2 when the input is invalid.
    """
    from alignup.cli import cluster_start  # noqa: PLC0415 - its libraries are extras, and not needed for --help

    cluster_start.check_upgrade(version, access, output=output)


command.add_command(why)
command.add_command(plan)
command.add_command(nodes)
command.add_command(upgrade_check)
command.add_command(collect.command)
