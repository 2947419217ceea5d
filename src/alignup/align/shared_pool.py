"""A NUMA-aware division of the CPUs that pods without exclusive CPUs share.

The kubelet lets such pods use its whole shared pool, on all NUMA nodes. Here each pod gets the part of the pool on as
few nodes as its requests allow, close to each other, so that the nodes are loaded alike. Pods stay where they were
unless a node is overloaded, a pod can do with fewer nodes, or the nodes are loaded very differently; an unchanged
pool with unchanged pods is divided as it was.

Every part is a subset of the pool, and none is empty unless the pool is. Memory follows the CPUs only where the limits
of all pods there fit into the memory of the nodes: a pod that is confined to a full node would be killed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import or_
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.machine import Machine

_UNIT = 1_000_000  #: loads are in millionths of a milli-CPU, so that what is lost by rounding does not matter
_PER_POD = 10  #: milli-CPUs that each pod counts for in addition, so that pods without requests are spread, too
_ROUNDING = 4096  #: differences between divisions that may be due to rounding


@dataclass(frozen=True, slots=True)
class SharedPod:
    uid: str
    cpu: int = 0  #: milli-CPUs that its containers request
    memory: int | None = None  #: bytes that its containers may use at most; ``None``: without limit
    pinned: NodeSet = 0  #: the nodes on which it has memory already, by the kubelet's choice; 0: none


class PoolShare(NamedTuple):
    """The part of the pool that a pod uses."""

    nodes: NodeSet
    cpus: CpuSet
    memory_nodes: NodeSet  #: 0: not to be changed


@dataclass(frozen=True)
class SharedPool:
    """The shared CPUs of a machine, and the memory of each node that pods without reserved memory may use."""

    machine: Machine
    cpus: CpuSet
    memory: Mapping[int, int] = field(default_factory=dict)  #: by node; empty: the memory of the machine

    @cached_property
    def node_cpus(self) -> dict[int, CpuSet]:
        """Return the CPUs by NUMA node, without nodes that have no CPUs; CPUs in no node are left out."""
        cpus_by_node: dict[int, CpuSet] = {}
        for cpu in self.machine.cpus:
            if cpu.node is not None and self.cpus >> cpu.id & 1:
                cpus_by_node[cpu.node] = cpus_by_node.get(cpu.node, 0) | 1 << cpu.id
        return dict(sorted(cpus_by_node.items()))

    @cached_property
    def node_memory(self) -> dict[int, int]:
        """Return the bytes of each node that has memory."""
        sizes = {node.id: self.memory.get(node.id, node.memory or 0) for node in self.machine.nodes if node.memory}
        return {id_: max(size, 0) for id_, size in sorted(sizes.items())}

    @cached_property
    def nodes(self) -> NodeSet:
        return bits.of(self.node_cpus)

    def cpus_of(self, nodes: NodeSet) -> CpuSet:
        """Return the shared CPUs of *nodes*; for all nodes, all shared CPUs, with CPUs in no node."""
        return self.cpus if nodes == self.nodes else bits.union(self.node_cpus[node] for node in bits.members(nodes))

    @cached_property
    def neighborhoods(self) -> list[list[NodeSet]]:
        """Return sets of nodes that are close to each other: of one node, of two, and so on."""
        distances = self.machine.distances
        levels: list[dict[NodeSet, None]] = [{} for _ in self.node_cpus]
        for start in self.node_cpus:
            near = sorted(
                self.node_cpus,
                key=lambda node: (node != start, distances.between(start, node) if distances else 0, node),
            )
            for level, nodes in zip(levels, accumulate((1 << node for node in near), or_), strict=True):
                level[nodes] = None
        return [list(level) for level in levels]


def divide_pool(
    pool: SharedPool, pods: Iterable[SharedPod], earlier: Mapping[str, PoolShare] | None = None
) -> dict[str, PoolShare]:
    """Return the part of each pod by uid; *earlier* is the previous division. Nothing if the pool is empty."""
    earlier = earlier or {}
    ordered_pods = sorted(pods, key=lambda pod: (-pod.cpu, pod.uid))
    if not pool.cpus:
        return {}
    if not pool.nodes:  # CPUs in no node at all
        return {pod.uid: PoolShare(0, pool.cpus, 0) for pod in ordered_pods}
    division = _Division(pool)
    new = []
    for pod in ordered_pods:
        nodes_before = earlier[pod.uid].nodes & pool.nodes if pod.uid in earlier else 0
        if nodes := pod.pinned & pool.nodes or nodes_before:
            division.put(pod, nodes)
        else:
            new.append(pod)
    for pod in new:
        division.put(pod, division.best(pod)[1])
    movable = [pod for pod in ordered_pods if not pod.pinned & pool.nodes]
    moves = 1
    while moves:  # it ends: every move makes the division strictly better
        moves = sum(division.improve(pod) for pod in movable)
    memory = _memory_nodes(pool, ordered_pods, division.placed, earlier)
    return {
        pod.uid: PoolShare(nodes := division.placed[pod.uid], pool.cpus_of(nodes), memory[pod.uid])
        for pod in ordered_pods
    }


class _Cost(NamedTuple):
    """How bad a division is, compared from left to right."""

    shortage: int  #: by which the requests of single pods exceed the CPUs of their nodes
    overload: int  #: by which the requests of all pods exceed the CPUs of nodes
    width: int  #: nodes of all pods
    distance: int  #: between the nodes of each pod
    imbalance: int


class _Division:
    """The nodes of each pod, and the load of each node."""

    def __init__(self, pool: SharedPool) -> None:
        self._pool = pool
        self._capacity = {node: cpus.bit_count() * 1000 * _UNIT for node, cpus in pool.node_cpus.items()}
        self._requested = dict.fromkeys(self._capacity, 0)
        self._weight = dict.fromkeys(self._capacity, 0)  #: with the share of each pod that does not depend on requests
        self._sets: dict[NodeSet, tuple[list[int], int]] = {}
        self.placed: dict[str, NodeSet] = {}

    def put(self, pod: SharedPod, nodes: NodeSet) -> None:
        self.placed[pod.uid] = nodes
        self._charge(pod, nodes, sign=1)

    def best(self, pod: SharedPod) -> tuple[_Cost, NodeSet]:
        """Return the best nodes for *pod*, which is not placed, and the cost.

        The fewest on which nothing is overloaded by it; if there are none, the fewest that have enough CPUs at all.
        """
        enough: list[NodeSet] = []
        scarce, has_room = self._free() < pod.cpu * _UNIT, self._room_check(pod)
        for level in self._pool.neighborhoods:
            if room := list(filter(has_room, level)):
                enough = room
                break
            enough = enough or [nodes for nodes in level if self._members(nodes)[1] >= pod.cpu * _UNIT]
            if enough and scarce:
                break
        return min((self.cost(pod, nodes), nodes) for nodes in enough or self._pool.neighborhoods[-1])

    def _room_check(self, pod: SharedPod) -> Callable[[NodeSet], bool]:
        """Return a function that says whether *pod* overloads no node of a set.

        A node has room for its part of the requests if the capacity of the set is above a limit that depends on the
        node alone. So one look for the nodes whose limit is not below it is enough, however many nodes the set has.
        """
        needed_units = pod.cpu * _UNIT
        limits = sorted(
            (max(needed_units * capacity // (max(capacity - self._requested[node], 0) + 1), needed_units - 1), node)
            for node, capacity in self._capacity.items()
        )
        from_limit = list(accumulate((1 << node for _, node in reversed(limits)), or_, initial=0))[::-1]
        return lambda nodes: not nodes & from_limit[bisect_left(limits, (self._members(nodes)[1], -1))]

    def improve(self, pod: SharedPod) -> bool:
        """Move *pod* if the move is worth its cost; return whether the pod moved."""
        old_nodes = self.placed[pod.uid]
        self._charge(pod, old_nodes, sign=-1)
        now, (then, new_nodes) = self.cost(pod, old_nodes), self.best(pod)
        # For balance alone a pod moves if the loads of the nodes still differ by a tenth of a node after that, or if
        # what it adds to the imbalance is halved: with few or idle pods, no node stays empty.
        least = max(min((pod.cpu + _PER_POD) * _UNIT // 5, now.imbalance // 2), _ROUNDING)
        worth = then[:-1] < now[:-1] or (then[:-1] == now[:-1] and now.imbalance - then.imbalance >= least)
        self.put(pod, new_nodes if worth else old_nodes)
        return worth

    def cost(self, pod: SharedPod, nodes: NodeSet) -> _Cost:
        """Return what *pod* on *nodes* adds to the cost."""
        overload = imbalance = 0
        for node, request, weight in self._parts(pod, nodes):
            capacity, requests, node_weight = self._capacity[node], self._requested[node], self._weight[node]
            overload += max(requests + request - capacity, 0) - max(requests - capacity, 0)
            imbalance += weight * (2 * node_weight + weight) // capacity  # the growth of its square
        members, total = self._members(nodes)
        distances = self._pool.machine.distances
        distance = distances.total(nodes) if distances and len(members) > 1 else 0
        return _Cost(max(pod.cpu * _UNIT - total, 0), overload, len(members), distance, imbalance)

    def _free(self) -> int:
        return sum(max(capacity - self._requested[node], 0) for node, capacity in self._capacity.items())

    def _charge(self, pod: SharedPod, nodes: NodeSet, *, sign: int) -> None:
        for node, request, weight in self._parts(pod, nodes):
            self._requested[node] += sign * request
            self._weight[node] += sign * weight

    def _parts(self, pod: SharedPod, nodes: NodeSet) -> Iterator[tuple[int, int, int]]:
        """Yield each of *nodes*, and the requests and the weight of *pod* there: in proportion to the node's CPUs."""
        members, total = self._members(nodes)
        for node in members:
            part = _UNIT * self._capacity[node]
            yield node, pod.cpu * part // total, (pod.cpu + _PER_POD) * part // total

    def _members(self, nodes: NodeSet) -> tuple[list[int], int]:
        """Return the nodes of a set, and their capacity."""
        if nodes not in self._sets:
            members = list(bits.members(nodes))
            self._sets[nodes] = members, sum(self._capacity[node] for node in members)
        return self._sets[nodes]


def _memory_nodes(
    pool: SharedPool, pods: Iterable[SharedPod], nodes_by_pod: Mapping[str, NodeSet], earlier: Mapping[str, PoolShare]
) -> dict[str, NodeSet]:
    """Return the memory nodes of each pod: the nodes of its CPUs if all pods confined there fit, or all nodes."""
    free = dict(pool.node_memory)
    everywhere = bits.of(free)
    nodes_of_pods: dict[str, NodeSet] = {}
    for pod in sorted(pods, key=lambda pod: (not (pod.uid in earlier and earlier[pod.uid].memory_nodes), pod.uid)):
        nodes = [node for node in bits.members(nodes_by_pod[pod.uid]) if node in free]
        if pod.pinned:
            nodes_of_pods[pod.uid] = 0
            continue
        nodes_of_pods[pod.uid] = everywhere
        if nodes and pod.memory is not None and pod.memory <= sum(free[node] for node in nodes):
            nodes_of_pods[pod.uid] = bits.of(nodes)
            rest = pod.memory
            for node in sorted(nodes, key=lambda node: (-free[node], node)):
                used_size = min(rest, free[node])
                free[node] -= used_size
                rest -= used_size
    return nodes_of_pods
