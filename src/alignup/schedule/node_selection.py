"""The nodes that schedulers consider for a pod, and the nodes they prefer, without the decisions of kubelets.

Covered exactly: unschedulable nodes, taints, node selectors, and required node affinity. What depends on other pods
(inter-pod affinity, topology spread) or on volumes is not covered.
"""

import json
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress

from alignup.align.bits import parse_integer
from alignup.documents import codec
from alignup.kubernetes.api import Change, EventType, Informer
from alignup.kubernetes.api.objects import (
    ApiNode,
    ApiPod,
    ApiPodSpec,
    Taint,
    Toleration,
)
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.node_selectors import NodeSelectorRequirement, NodeSelectorTerm
from alignup.kubernetes.manifests.workloads import Workload
from alignup.placement.scheduling.facts import WaitingOrder

_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_EFFECTS = {"NoSchedule", "NoExecute"}
#: The controllers whose pods kube-scheduler spreads over nodes and zones unless they have constraints of their own.
_SPREAD_OWNERS = {"ReplicaSet", "StatefulSet", "ReplicationController"}
_WORKLOAD_FIELDS = ("affinity", "nodeName", "nodeSelector", "schedulingGates", "tolerations")

#: What the DaemonSet controller adds to its pods.
DAEMON_SET_TOLERATIONS = (
    *(Toleration(f"node.kubernetes.io/{key}", "Exists", "", "NoExecute") for key in ("not-ready", "unreachable")),
    *(
        Toleration(f"node.kubernetes.io/{key}", "Exists", "", "NoSchedule")
        for key in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
    ),
)


def selection_key(spec: ApiPodSpec) -> Hashable:
    """Return a key that is equal for pods that may be scheduled to the same nodes."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required_terms = affinity.required if affinity else None
    return spec.node_name, tuple(sorted(spec.node_selector.items())), required_terms, spec.tolerations


def exclusions(node: ApiNode, spec: ApiPodSpec) -> tuple[str, ...]:
    """Return why schedulers do not consider *node* for a pod with *spec*; empty: they do."""
    name, labels = node.metadata.name, node.metadata.labels
    reasons = []
    if spec.node_name and spec.node_name != name:
        reasons.append(f"the pod names node {spec.node_name}")
    if node.spec.unschedulable and not is_tolerated(_UNSCHEDULABLE, spec.tolerations):
        reasons.append("unschedulable")
    for taint in node.spec.taints:
        repeated = node.spec.unschedulable and taint.key == _UNSCHEDULABLE.key
        if taint.effect in _EFFECTS and not repeated and not is_tolerated(taint, spec.tolerations):
            reasons.append(f"taint {show_taint(taint)}")
    missing_labels = [f"{key}={value}" for key, value in spec.node_selector.items() if labels.get(key) != value]
    if missing_labels:
        reasons.append(f"node selector {','.join(missing_labels)}")
    required_terms = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
    if required_terms is not None and not selects_node(required_terms.node_selector_terms, name, labels):
        reasons.append("node affinity")
    return tuple(reasons)


def show_taint(taint: Taint) -> str:
    """Return a taint as kubectl writes it: ``dedicated=gpu:NoSchedule``."""
    return f"{taint.key}{taint.value and '='}{taint.value}:{taint.effect}"


def restrictions(node: ApiNode) -> tuple[str, ...]:
    """Return why schedulers may not consider *node*; the taint that follows from its own field is left out."""
    taints = [show_taint(taint) for taint in node.spec.taints if taint.key != _UNSCHEDULABLE.key]
    return (*(["unschedulable"] if node.spec.unschedulable else []), *taints)


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Return whether one of *tolerations* is for *taint*."""
    for toleration in tolerations:
        if toleration.effect in {"", taint.effect} and toleration.key in {"", taint.key}:
            equal = toleration.operator in {"", "Equal"} and toleration.value == taint.value
            if equal or toleration.operator == "Exists":
                return True
    return False


def selects_node(terms: Iterable[NodeSelectorTerm], name: str, labels: Mapping[str, str]) -> bool:
    """Return whether one of *terms* selects a node."""
    return any(_selects(term, name, labels) for term in terms)


def _selects(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a term, which selects nothing without conditions, selects a node."""
    conditions = [(requirement, labels) for requirement in term.match_expressions]
    conditions += [(requirement, {"metadata.name": name}) for requirement in term.match_fields]
    return bool(conditions) and all(holds(requirement, values) for requirement, values in conditions)


def holds(requirement: NodeSelectorRequirement, values: Mapping[str, str]) -> bool:
    """Return whether labels or fields with these *values* meet a requirement."""
    value = values.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            with suppress(ValueError):  # also for several values
                (limit,), number = map(parse_integer, requirement.values), parse_integer(value or "")
                return number > limit if operator == "Gt" else number < limit
    return False  # not numbers, or an operator that the API server would not accept


def has_preferences(pod: ApiPod) -> bool:
    """Return whether kube-scheduler prefers some nodes because of what *pod* says, or because of its controller.

    A pod without preferences needs only the best node. For the others, the scheduler has to choose among several.
    """
    affinity, constraints = pod.spec.affinity, pod.spec.topology_spread_constraints
    if affinity is not None:
        terms = (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
        if any(term is not None and term.preferred for term in terms):
            return True
    if constraints:
        return any(constraint.when_unsatisfiable == "ScheduleAnyway" for constraint in constraints)
    return any(owner.controller and owner.kind in _SPREAD_OWNERS for owner in pod.metadata.owner_references)


class SoftTaints:
    """The nodes with taints of the effect PreferNoSchedule, by their taints: nodes of one kind have the same."""

    def __init__(self, nodes: Informer[ApiNode]) -> None:
        self._taints: dict[str, tuple[Taint, ...]] = {}  #: by node
        self._nodes: dict[tuple[Taint, ...], set[str]] = {}
        nodes.subscribe(self._node_changed)

    def avoided_by(self, tolerations: Iterable[Toleration]) -> set[str]:
        """Return the nodes that a pod with these tolerations avoids where it can."""
        tolerations, avoided_nodes = tuple(tolerations), set[str]()
        for taints, nodes in self._nodes.items():
            if not all(is_tolerated(taint, tolerations) for taint in taints):
                avoided_nodes |= nodes
        return avoided_nodes

    def _node_changed(self, change: Change[ApiNode]) -> None:
        name = change.object.metadata.name
        taints_before = self._taints.pop(name, ())
        if taints_before:
            self._nodes[taints_before].discard(name)
            if not self._nodes[taints_before]:
                del self._nodes[taints_before]
        taints = tuple([taint for taint in change.object.spec.taints if taint.effect == "PreferNoSchedule"])
        if taints and change.type is not EventType.DELETED:
            self._taints[name] = taints
            self._nodes.setdefault(taints, set()).add(name)


def scheduling_spec(workload: Workload) -> ApiPodSpec:
    """Return what a scheduler reads of one replica of *workload*; ``ParseError`` if a field has the wrong type."""
    spec = workload.manifest.get("spec") or {}
    workload_fields = {name: value for name in _WORKLOAD_FIELDS if (value := spec.get(name)) is not None}
    fields = json.loads(documents.to_json(workload_fields))  # plain numbers
    if workload.phase:  # exported from a cluster, where it has been bound
        fields.pop("nodeName", None)
    if workload.kind == "DaemonSet":
        tolerations = [codec.to_builtins(toleration) for toleration in DAEMON_SET_TOLERATIONS]
        fields["tolerations"] = [*fields.get("tolerations", ()), *tolerations]
    return codec.convert(fields, ApiPodSpec)


def is_unschedulable(pod: ApiPod) -> bool:
    """Return whether its scheduler has found no node for *pod*."""
    conditions = [condition for condition in pod.status.conditions if condition.type == "PodScheduled"]
    return any(condition.status == "False" and condition.reason == "Unschedulable" for condition in conditions)


def waiting_order(pod: ApiPod) -> WaitingOrder:
    """Return a sort key: the highest priority first, then the oldest."""
    metadata = pod.metadata
    return (-(pod.spec.priority or 0), metadata.creation_timestamp or "~", metadata.namespace, metadata.name)
