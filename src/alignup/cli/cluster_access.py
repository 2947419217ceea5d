"""The cluster that a command asks: the options that name it and its pods."""

from dataclasses import dataclass

import click

from alignup.align.errors import AlignError
from alignup.cli.app import KUBECTL, InputError
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import flag_option, option, path_option


class ClusterCommand(click.Command):
    """A command of ``alignup cluster``, whose examples have the name that it was called by."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        original = self.epilog
        if original and ctx.find_root().info_name == KUBECTL:
            self.epilog = original.replace("  alignup cluster ", f"  {KUBECTL} ").replace("  alignup ", f"  {KUBECTL} ")
        super().format_epilog(ctx, formatter)
        self.epilog = original


class ClusterGroup(ClusterCommand, click.Group):
    """``alignup cluster``."""


class ClusterError(InputError, AlignError):
    """The API server does not answer, refuses, or has not what was asked for."""

    exit_code = FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    kubeconfig: str | None = path_option("FILE", "Kubeconfig file", "KUBECONFIG, or ~/.kube/config")
    context: str | None = option("NAME", "Context of the kubeconfig", "its current context")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSelection:
    """Which pods of the cluster are meant, as for kubectl."""

    namespace: str | None = option("NAME", "Namespace of POD", "that of the context", "-n", "--namespace")
    all_namespaces: bool = flag_option("Select from the pods of all namespaces", "-A", "--all-namespaces")
    selector: str | None = option(
        "LABELS", "Select the pods with these labels, such as app=web", "", "-l", "--selector"
    )

    @property
    def selects(self) -> bool:
        """Whether pods are selected from a list."""
        return self.all_namespaces or self.selector is not None
