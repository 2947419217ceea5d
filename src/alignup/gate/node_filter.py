"""The nodes that a pod may be scheduled to by its own selectors, kept for all pods with the same selectors."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

from alignup.kubernetes.api.objects import ApiNode, ApiPodSpec
from alignup.schedule.node_selection import exclusions

MAX_SELECTIONS = 256  #: different selectors for which nodes are kept


def selection_key(spec: ApiPodSpec) -> Hashable:
    """Equal for pods that may be scheduled to the same nodes."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required if affinity else None
    return (spec.node_name, tuple(sorted(spec.node_selector.items())), required, spec.tolerations)


class NodeFilter:
    """Which nodes schedulers consider for pods; *nodes* returns all nodes of the cluster."""

    def __init__(self, nodes: Callable[[], Iterable[ApiNode]]) -> None:
        self._nodes = nodes
        self._known: OrderedDict[Hashable, tuple[ApiPodSpec, set[str]]] = OrderedDict()

    def allowed(self, spec: ApiPodSpec) -> set[str]:
        """Return the names of the nodes; the set is current until it is asked for again."""
        key = selection_key(spec)
        if key not in self._known:
            found = {node.metadata.name for node in self._nodes() if not exclusions(node, spec)}
            self._known[key] = (spec, found)
            if len(self._known) > MAX_SELECTIONS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key][1]

    def put(self, node: ApiNode) -> None:
        """A node was added or has changed."""
        for spec, allowed in self._known.values():
            allowed.discard(node.metadata.name)
            if not exclusions(node, spec):
                allowed.add(node.metadata.name)

    def remove(self, name: str) -> None:
        for _, allowed in self._known.values():
            allowed.discard(name)
