"""Nodes that were offered to pods whose bindings are still to come.

A scheduler asks about the next pod before it binds the previous one, and a node gets one pod at a time. So a node that
was offered to another pod a moment ago comes after the others.
"""

import time
from collections.abc import Callable, Iterable

SECONDS = 2.0  #: after which a scheduler has bound a pod elsewhere, or not at all


class Offers:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pods: dict[str, tuple[str, ...]] = {}  #: uid → nodes
        self._nodes: dict[str, tuple[str, float]] = {}  #: node → uid of the last pod it was offered to, and until when

    def offered(self, uid: str, nodes: Iterable[str]) -> None:
        self.withdraw(uid)
        self._pods[uid] = chosen = tuple(nodes)
        until = self._clock() + SECONDS
        for node in chosen:
            self._nodes[node] = (uid, until)

    def withdraw(self, uid: str) -> None:
        """The pod is bound, or gone."""
        for node in self._pods.pop(uid, ()):
            if self._nodes.get(node, ("", 0.0))[0] == uid:
                del self._nodes[node]

    def taken(self, uid: str) -> frozenset[str]:
        """The nodes that were offered to other pods than *uid* lately."""
        now = self._clock()
        for late in [pod for pod, nodes in self._pods.items() if not self._is_current(nodes, now)]:
            self.withdraw(late)
        return frozenset([node for node, (pod, _) in self._nodes.items() if pod != uid])

    def _is_current(self, nodes: tuple[str, ...], now: float) -> bool:
        return any(self._nodes[node][1] > now for node in nodes if node in self._nodes)
