"""On which NUMA nodes could so many CPUs be had? What the CPU provider knows of the machine to answer that."""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.hint import AmountFamily, HintList
from alignup.align.machine import KubeletView

CpuHints = AmountFamily | HintList  #: where CPUs could come from

#: The answer to a wish that no node, nor all of them, can fulfil.
NO_HINTS = HintList((), preferred=frozenset())


class CpuNodes:
    """The NUMA nodes of one machine and their CPUs; with *by_socket* the nodes of a socket are as good as one."""

    def __init__(self, view: KubeletView, *, by_socket: bool) -> None:
        self._cpus = view.node_cpus
        #: how many CPUs the richest node has, the two richest, and so on
        self._richest = tuple(accumulate(sorted((cpus.bit_count() for cpus in self._cpus.values()), reverse=True)))
        self._sockets = tuple(view.socket_cpus.values()) if by_socket else ()
        self._nodes_of_socket = tuple(map(self.touched, self._sockets))
        self._nodes_per_socket = view.num_nodes // max(view.num_sockets, 1)

    def touched(self, cpus: CpuSet) -> NodeSet:
        """The nodes *cpus* are on."""
        return bits.of(node for node, own in self._cpus.items() if own & cpus)

    def near(self, nodes: NodeSet) -> CpuSet:
        """The CPUs of *nodes*, or of every socket they touch where sockets count."""
        cpus = bits.union(own for node, own in self._cpus.items() if nodes >> node & 1)
        return bits.union(socket for socket in self._sockets if socket & cpus) if self._sockets else cpus

    def count(self, cpus: CpuSet) -> dict[int, int]:
        """Node → how many of *cpus* are on it."""
        return {node: (cpus & own).bit_count() for node, own in self._cpus.items()}

    def hints(self, request: int, *, free: Mapping[int, int], reusable: CpuSet = 0) -> AmountFamily:
        """Where *request* CPUs could come from when each node has so many *free*; the *reusable* ones are used first.

        A CPU that is reusable as well as free counts twice, as it does in the kubelet.
        """
        width = min(bisect_left(self._richest, request) + 1, len(self._richest))
        by_socket = bool(self._sockets) and self._nodes_per_socket > 0
        return AmountFamily(
            free,
            request - reusable.bit_count(),
            preferred_width=width,
            required=self.touched(reusable) if reusable else 0,
            sockets=self._nodes_of_socket if by_socket else (),
            preferred_sockets=-(-width // self._nodes_per_socket) if by_socket else 0,
        )
