"""Releases a pod to one node: its gate goes, and its required node affinity names the node, in one patch.

While a pod has a gate, the API server accepts changes of its required node affinity that only restrict it: terms must
stay, and may gain conditions. A pod goes to a node that one term selects, so every term gains the name of the node. A
term without conditions selects nothing; it cannot gain any, and need not. All other affinity stays as it is.
"""

from collections.abc import Mapping
from typing import Any

from alignup.documents.codec import to_builtins
from alignup.gate.names import NODE_ANNOTATION
from alignup.kubernetes.api.objects import ApiPod, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

_NAME_FIELD = "metadata.name"


def pinned(required: NodeSelector | None, node: str) -> NodeSelector:
    """Return the selector of the nodes that *required* selects (``None``: all) and that are called *node*."""
    named = NodeSelectorRequirement(_NAME_FIELD, "In", (node,))
    if required is None:
        return NodeSelector((NodeSelectorTerm(match_fields=(named,)),))
    return NodeSelector(tuple(_with_field(term, named) for term in required.node_selector_terms))


def pinned_node(pod: ApiPod) -> str:
    """Return the node that a pod was released to; empty if it was not released here."""
    return pod.metadata.annotations.get(NODE_ANNOTATION, "")


def release_patch(pod: ApiPod, node: str) -> Mapping[str, Any]:
    """Return the merge patch that releases *pod*, whose only gate is ours, to *node*.

    It fails with a conflict if the pod was changed since it was read, for example if its selectors were restricted.
    """
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    selector = to_builtins(pinned(affinity.required if affinity else None, node))
    required = {"requiredDuringSchedulingIgnoredDuringExecution": selector}
    metadata = pod.metadata
    return {
        "metadata": {
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
            "annotations": {NODE_ANNOTATION: node},
        },
        "spec": {"schedulingGates": None, "affinity": {"nodeAffinity": required}},
    }


def _with_field(term: NodeSelectorTerm, named: NodeSelectorRequirement) -> NodeSelectorTerm:
    if not term.match_expressions and not term.match_fields:
        return term
    if named in term.match_fields:
        return term
    return NodeSelectorTerm(term.match_expressions, (*term.match_fields, named))
