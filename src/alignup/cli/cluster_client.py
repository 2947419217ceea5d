"""The API server of ``alignup cluster`` and ``alignup collect``: questions, and its errors in words."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from alignup.cli.app import InputError
from alignup.cli.cluster_access import AccessOptions, ClusterError, PodSelection
from alignup.cli.object_names import ObjectName
from alignup.kubernetes.api import PODS, ApiClient, Query, Timing, errors, find_access
from alignup.kubernetes.api.objects import ApiPod
from alignup.web.log import log_to_stderr

Answer = TypeVar("Answer")
ATTEMPTS = 3  #: of a request to an API server that cannot be reached or is overloaded
PERMISSIONS = "Alignup lists nodes, hoststates.alignup.dev, and the pods of all namespaces."
_ACCESS = "Choose a kubeconfig file with --kubeconfig, and a context of it with --context."
CHOOSE_NAMESPACE = "Choose a namespace with -n; for a pod that does not exist yet, give its manifest with -f."


def ask(
    access: AccessOptions,
    read: Callable[[ApiClient, str], Coroutine[Any, Any, Answer]],
    *,
    log_level: str = "warning",
) -> Answer:
    """Return what *read* makes of the API server and the namespace of the context, or of this pod."""
    log_to_stderr(level=log_level)

    async def connect() -> Answer:
        server = find_access(access.kubeconfig, context=access.context or "")
        async with ApiClient(server, timing=Timing(attempts=ATTEMPTS)) as client:
            return await read(client, server.namespace)

    return asyncio.run(connect())


async def find_pods(
    client: ApiClient, names: Sequence[ObjectName], options: PodSelection, namespace: str
) -> list[ApiPod]:
    """Return the pods with *names*, and the pods that the options select."""
    if options.selects:
        searched_namespace = "" if options.all_namespaces else options.namespace or namespace
        api_pods = (await client.list(PODS, Query(namespace=searched_namespace, labels=options.selector or ""))).items
        pods = [
            pod
            for pod in api_pods
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
def api_errors(permissions: str = PERMISSIONS) -> Iterator[None]:
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
