"""Hints for CPUs: the sets of NUMA nodes with enough free CPUs."""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.hint import AmountFamily, HintList
from alignup.align.machine import KubeletView

CpuHints = AmountFamily | HintList

#: The hints for a request that cannot be satisfied.
NO_HINTS = HintList((), preferred=frozenset())


class CpuNodes:
    """The NUMA nodes of one machine and their CPUs; with *by_socket*, the nodes of a socket count as one."""

    def __init__(self, view: KubeletView, *, by_socket: bool) -> None:
        self._cpus = view.node_cpus
        #: the number of CPUs of the largest node, of the two largest, and so on
        self._largest = tuple(accumulate(sorted((cpus.bit_count() for cpus in self._cpus.values()), reverse=True)))
        self._sockets = tuple(view.socket_cpus.values()) if by_socket else ()
        self._nodes_of_socket = tuple(map(self.touched, self._sockets))
        self._nodes_per_socket = view.num_nodes // max(view.num_sockets, 1)

    def touched(self, cpus: CpuSet) -> NodeSet:
        return bits.of(node for node, own in self._cpus.items() if own & cpus)

    def near(self, nodes: NodeSet) -> CpuSet:
        """The CPUs of *nodes*; with sockets, of every socket they touch."""
        cpus = bits.union(own for node, own in self._cpus.items() if nodes >> node & 1)
        return bits.union(socket for socket in self._sockets if socket & cpus) if self._sockets else cpus

    def count(self, cpus: CpuSet) -> dict[int, int]:
        return {node: (cpus & own).bit_count() for node, own in self._cpus.items()}

    def hints(self, request: int, *, free: Mapping[int, int], reusable: CpuSet = 0) -> AmountFamily:
        """Hints for *request* CPUs; as in the kubelet, a CPU both *reusable* and *free* (here by node) counts twice."""
        width = min(bisect_left(self._largest, request) + 1, len(self._largest))
        by_socket = bool(self._sockets) and self._nodes_per_socket > 0
        return AmountFamily(
            free,
            request - reusable.bit_count(),
            preferred_width=width,
            required=self.touched(reusable) if reusable else 0,
            sockets=self._nodes_of_socket if by_socket else (),
            preferred_sockets=-(-width // self._nodes_per_socket) if by_socket else 0,
        )
