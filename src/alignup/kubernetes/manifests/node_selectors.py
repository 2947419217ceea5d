"""Node selectors, as pods, volumes and ResourceClaims have them."""

from alignup.kubernetes.manifests.pod_decoder import ObjectPart


class NodeSelectorRequirement(ObjectPart, frozen=True):
    """A condition on a label or field of nodes."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(ObjectPart, frozen=True):
    """Conditions that must all be true; a term without any selects no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(ObjectPart, frozen=True):
    """Terms; at least one must be true."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()
