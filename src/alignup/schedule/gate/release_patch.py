"""The patch of a release: the gate of a pod is removed, and its required node affinity names the chosen nodes.

While a pod has a gate, the API server accepts changes of its required node affinity that only restrict it: terms must
stay, and may gain conditions. A pod goes to a node that one term selects, so every term gains the name of the node. A
term without conditions selects nothing; it cannot gain any, and need not. All other affinity stays as it is. A term can
name one node only; several are named by a term each, or, in terms of the pod, by the label with their host names.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import structlog

from alignup.documents.codec import to_builtins
from alignup.documents.host_state import GROUP
from alignup.kubernetes.api import PODS, ApiClient
from alignup.kubernetes.api.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    ServerFailureError,
    TooManyRequestsError,
    UnreachableError,
    UnreadableError,
)
from alignup.kubernetes.api.objects import ApiPod, Condition
from alignup.kubernetes.manifests.node_selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from alignup.placement.scheduling.releases import ReleaseOutcome
from alignup.placement.steered import STEERED_ANNOTATION

NODE_ANNOTATION = f"{GROUP}/node"  #: of a released pod: the node that was chosen for it, or several with commas
HOST_NAME = "kubernetes.io/hostname"  #: the label of nodes

_log = structlog.get_logger()


def scheduled_condition(pod: ApiPod) -> Condition | None:
    """Return what the scheduler says about *pod*; ``None``: nothing."""
    for condition in pod.status.conditions:
        if (condition.type, condition.status) == ("PodScheduled", "False") and condition.reason != "SchedulingGated":
            return condition
    return None


def controller_uids(pod: ApiPod) -> set[str]:
    """Return the uids of the controllers (at most one) that replace *pod* when it is deleted."""
    return {owner.uid for owner in pod.metadata.owner_references if owner.controller}


def pinned(selector: NodeSelector | None, nodes: Mapping[str, str]) -> NodeSelector:
    """Return the selector of the nodes that *selector* selects (``None``: all) and that are among *nodes*."""
    requirements = {name: NodeSelectorRequirement("metadata.name", "In", (name,)) for name in nodes}
    if selector is None:
        return NodeSelector(
            tuple(NodeSelectorTerm(match_fields=(requirement,)) for requirement in requirements.values())
        )
    if len(nodes) > 1:
        hosts = NodeSelectorRequirement(HOST_NAME, "In", tuple(sorted(nodes.values())))
        return NodeSelector(tuple(_restricted(term, expression=hosts) for term in selector.node_selector_terms))
    (name,) = requirements.values()
    return NodeSelector(tuple(_restricted(term, field=name) for term in selector.node_selector_terms))


def _restricted(
    term: NodeSelectorTerm,
    *,
    expression: NodeSelectorRequirement | None = None,
    field: NodeSelectorRequirement | None = None,
) -> NodeSelectorTerm:
    expressions, fields = term.match_expressions, term.match_fields
    if not expressions and not fields:
        return term
    expressions += (expression,) if expression is not None and expression not in expressions else ()
    fields += (field,) if field is not None and field not in fields else ()
    return NodeSelectorTerm(expressions, fields)


def pinned_nodes(pod: ApiPod) -> tuple[str, ...]:
    """Return the nodes that a pod was released to; empty if it was not released by a gate controller.

    A pod author can write such a node affinity. The annotation stands for the controller: an admission policy lets
    nobody else write it.
    """
    names = tuple(filter(None, pod.metadata.annotations.get(NODE_ANNOTATION, "").split(",")))
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    selector = affinity.required if affinity else None
    if not names or pod.spec.scheduling_gates or selector is None:
        return ()
    terms = [term for term in selector.node_selector_terms if term.match_expressions or term.match_fields]
    return names if terms and all(_names_some(term, names) for term in terms) else ()


def _names_some(term: NodeSelectorTerm, names: Collection[str]) -> bool:
    """Return whether a term selects nothing but some of these nodes; their host names are not checked."""
    fields = [
        requirement.values
        for requirement in term.match_fields
        if (requirement.key, requirement.operator) == ("metadata.name", "In")
    ]
    if any(len(values) == 1 and values[0] in names for values in fields):
        return True
    labels = [
        requirement.values
        for requirement in term.match_expressions
        if (requirement.key, requirement.operator) == (HOST_NAME, "In")
    ]
    return len(names) > 1 and any(len(values) == len(names) for values in labels)


def release_patch(pod: ApiPod, nodes: Mapping[str, str], steered: str = "") -> Mapping[str, Any]:
    """Return the merge patch that releases *pod*, whose only gate is ours, to *nodes*, where it may be *steered*.

    It fails with a conflict if the pod was changed since it was read, for example if its selectors were restricted.
    """
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    selector = to_builtins(pinned(affinity.required if affinity else None, nodes))
    node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": selector}
    annotations = {NODE_ANNOTATION: ",".join(nodes)} | ({STEERED_ANNOTATION: steered} if steered else {})
    preconditions = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
    return {
        "metadata": {**preconditions, "annotations": annotations},
        "spec": {"schedulingGates": None, "affinity": {"nodeAffinity": node_affinity}},
    }


class WrittenRelease(NamedTuple):
    failure: ReleaseOutcome | None = None  #: ``None``: the pod is released
    current: ApiPod | None = None  #: the pod as it is now, if it can be tried again
    error: str = ""  #: the API server's answer


async def write_release(
    client: ApiClient, pod: ApiPod, nodes: Mapping[str, str], *, steered: str = ""
) -> WrittenRelease:
    """Release *pod* to *nodes*, each with its host name, and find out whether it was done when the response is lost."""
    ids = {"pod": pod.metadata.full_name, "uid": pod.metadata.uid}
    try:
        await client.patch(PODS.of(pod), release_patch(pod, nodes, steered))
    except (ConflictError, NotFoundError):
        return await _find_out(client, pod, nodes)
    except (UnreachableError, UnreadableError, ServerFailureError, TooManyRequestsError) as error:
        _log.warning("release not confirmed", **ids, problem=str(error))
        await client.timing.sleep(client.timing.spread(client.timing.retry))
        return await _find_out(client, pod, nodes)
    except ApiError as error:
        return WrittenRelease(ReleaseOutcome.REFUSED, pod, str(error))
    return WrittenRelease()


async def _find_out(client: ApiClient, pod: ApiPod, nodes: Mapping[str, str]) -> WrittenRelease:
    """Read the pod until the API server answers: nothing may be assumed before."""
    while True:
        try:
            current = await client.find(PODS.of(pod))
        except ApiError as error:
            ids = {"pod": pod.metadata.full_name, "uid": pod.metadata.uid}
            _log.warning("release not confirmed", **ids, problem=str(error))
            await client.timing.sleep(client.timing.spread(client.timing.longest_retry))
            continue
        if current is None or current.metadata.uid != pod.metadata.uid:
            return WrittenRelease(ReleaseOutcome.DELETED)
        if pinned_nodes(current) == tuple(nodes):
            return WrittenRelease()
        return WrittenRelease(ReleaseOutcome.CHANGED, current)
