"""Which nodes schedulers consider for a pod, whatever the kubelets there would decide.

Covered exactly: unschedulable nodes, taints, node selectors, and required node affinity. What depends on other pods
(inter-pod affinity, topology spread) or on volumes is not covered.
"""

from collections.abc import Iterable, Iterator, Mapping

from alignup.kubernetes.api.objects import (
    ApiNode,
    ApiPodSpec,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
)

_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_EFFECTS = {"NoSchedule", "NoExecute"}

#: What the DaemonSet controller adds to its pods.
DAEMON_SET_TOLERATIONS = (
    *(Toleration(f"node.kubernetes.io/{key}", "Exists", "", "NoExecute") for key in ("not-ready", "unreachable")),
    *(
        Toleration(f"node.kubernetes.io/{key}", "Exists", "", "NoSchedule")
        for key in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
    ),
)


def exclusions(node: ApiNode, spec: ApiPodSpec) -> tuple[str, ...]:
    """Why schedulers do not consider *node* for a pod with *spec*; empty: they do."""
    return tuple(_exclusions(node, spec))


def _exclusions(node: ApiNode, spec: ApiPodSpec) -> Iterator[str]:
    name, labels = node.metadata.name, node.metadata.labels
    if spec.node_name and spec.node_name != name:
        yield f"the pod names node {spec.node_name}"
    if node.spec.unschedulable and not is_tolerated(_UNSCHEDULABLE, spec.tolerations):
        yield "unschedulable"
    for taint in node.spec.taints:
        repeated = node.spec.unschedulable and taint.key == _UNSCHEDULABLE.key
        if taint.effect in _EFFECTS and not repeated and not is_tolerated(taint, spec.tolerations):
            yield f"taint {show_taint(taint)}"
    missing = [f"{key}={value}" for key, value in spec.node_selector.items() if labels.get(key) != value]
    if missing:
        yield f"node selector {','.join(missing)}"
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity and affinity.required is not None and not _selects(affinity.required, name, labels):
        yield "node affinity"


def show_taint(taint: Taint) -> str:
    """A taint as kubectl writes it: ``dedicated=gpu:NoSchedule``."""
    return f"{taint.key}{taint.value and '='}{taint.value}:{taint.effect}"


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Whether one of *tolerations* is for *taint*."""
    return any(_tolerates(one, taint) for one in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in {"", taint.effect} or toleration.key not in {"", taint.key}:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in {"", "Equal"} and toleration.value == taint.value


def _selects(selector: NodeSelector, name: str, labels: Mapping[str, str]) -> bool:
    return any(_matches(term, name, labels) for term in selector.node_selector_terms)


def _matches(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": name}
    return all(holds(one, labels) for one in term.match_expressions) and all(
        holds(one, fields) for one in term.match_fields
    )


def holds(requirement: NodeSelectorRequirement, values: Mapping[str, str]) -> bool:
    """Whether labels or fields with these *values* meet a requirement."""
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
        case "Gt" | "Lt":
            return _compare(value, requirement)
    return False  # an operator that the API server would not accept


def _compare(value: str | None, requirement: NodeSelectorRequirement) -> bool:
    try:
        own, limit = int(value or ""), int("".join(requirement.values[:1]))
    except ValueError:
        return False
    return own > limit if requirement.operator == "Gt" else own < limit
