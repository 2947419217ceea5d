"""The cluster that a command asks: the options that name it and pods of it, and advice for errors of its API server."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from alignup.align.errors import AlignError
from alignup.cli.app import KUBECTL, InputError
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import flag_option, option, path_option

if TYPE_CHECKING:
    from alignup.cli.object_names import ObjectName
    from alignup.kubernetes.api import ApiClient
    from alignup.kubernetes.api.objects import ApiPod

Answer = TypeVar("Answer")

ATTEMPTS = 3  #: of a request to an API server that cannot be reached or is overloaded
CHOOSE_NAMESPACE = "Choose a namespace with -n; for a pod that does not exist yet, give its manifest with -f."
_ACCESS = "Choose a kubeconfig file with --kubeconfig, and a context of it with --context."
_PERMISSIONS = "Alignup lists nodes, hoststates.alignup.dev, and the pods of all namespaces."


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


def ask(
    access: AccessOptions,
    read: "Callable[[ApiClient, str], Coroutine[Any, Any, Answer]]",
    *,
    log_level: str = "warning",
) -> Answer:
    """Return what *read* makes of the API server and the namespace of the context, or of this pod."""
    import asyncio  # noqa: PLC0415 - slow to import

    from alignup.kubernetes.api import ApiClient, Timing, find_access  # noqa: PLC0415
    from alignup.web.log import log_to_stderr  # noqa: PLC0415

    log_to_stderr(level=log_level)

    async def connect() -> Answer:
        server = find_access(access.kubeconfig, context=access.context or "")
        async with ApiClient(server, timing=Timing(attempts=ATTEMPTS)) as client:
            return await read(client, server.namespace)

    return asyncio.run(connect())


async def find_pods(
    client: "ApiClient", names: "Sequence[ObjectName]", options: PodSelection, namespace: str
) -> "list[ApiPod]":
    """Return the pods with *names*, and those that the options select."""
    from alignup.kubernetes.api import PODS, Query  # noqa: PLC0415 - slow to import

    if options.selects:
        where = "" if options.all_namespaces else options.namespace or namespace
        listed = (await client.list(PODS, Query(namespace=where, labels=options.selector or ""))).items
        pods = [
            pod
            for pod in listed
            if not names or any(name.matches("Pod", pod.metadata.namespace, pod.metadata.name) for name in names)
        ]
        if not pods:
            raise ClusterError("no such pods found", advice="List pods with kubectl get pods, with the same options.")
        return pods
    pods = []
    for name in names:
        pod = await client.find(PODS.at(name.name, namespace=name.namespace))
        if pod is None:
            raise ClusterError(f"pod {name.name} not found in namespace {name.namespace}", advice=CHOOSE_NAMESPACE)
        pods.append(pod)
    return pods


@contextmanager
def api_errors(permissions: str = _PERMISSIONS) -> Iterator[None]:
    from alignup.kubernetes.api import errors  # noqa: PLC0415 - slow to import

    try:
        yield
    except errors.AccessError as error:
        raise InputError(str(error), advice=_ACCESS) from error
    except errors.UnreachableError as error:
        raise ClusterError(
            str(error), advice="Check the address and the network, or choose another cluster with --context."
        ) from error
    except errors.UnauthorizedError as error:
        raise ClusterError(str(error), advice="Renew the credentials of the kubeconfig.") from error
    except errors.ForbiddenError as error:
        raise ClusterError(str(error), advice=permissions) from error
