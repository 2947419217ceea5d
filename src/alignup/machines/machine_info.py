"""The ``MachineInfo`` of cAdvisor, in JSON: its API and the kubelet's ``/spec/`` return it."""

import msgspec

from alignup.align.errors import FieldError, ParseError, SourceError
from alignup.align.machine import MAX_CPUS, MAX_NODE_ID, MAX_NODES, CadvisorNode, HugePages, Machine
from alignup.documents.codec import Int64, convert
from alignup.machines import cadvisor
from alignup.machines.cadvisor import CadvisorCore, CadvisorNodeTopology, CadvisorTopology


class _Pages(msgspec.Struct):
    page_size: Int64  #: KiB
    num_pages: Int64


class _Cache(msgspec.Struct):
    id: Int64 = 0
    level: Int64 = 0


class _Core(msgspec.Struct):
    core_id: Int64
    thread_ids: list[Int64]
    socket_id: Int64 = 0
    uncore_caches: list[_Cache] | None = None


class _Node(msgspec.Struct):
    node_id: Int64
    memory: Int64 = 0
    hugepages: list[_Pages] | None = None
    cores: list[_Core] | None = None
    caches: list[_Cache] | None = None
    distances: list[Int64] | None = None


class _Info(msgspec.Struct):
    num_cores: Int64
    topology: list[_Node] | None
    num_sockets: Int64 = 0
    memory_capacity: Int64 = 0
    hugepages: list[_Pages] | None = None


def from_machine_info(document: object, *, name: str) -> Machine:
    try:
        info = convert(document, _Info)
    except FieldError as error:
        raise SourceError(error.message, file=name, field=error.field) from error
    except ParseError as error:
        raise SourceError(f"not a valid MachineInfo of cAdvisor: {error}", file=name) from error
    nodes = info.topology or []
    cpus = sum(len(core.thread_ids) for node in nodes for core in node.cores or ())
    for kind, count, most in (("CPUs", cpus, MAX_CPUS), ("NUMA nodes", len(nodes), MAX_NODES)):
        if count > most:
            raise SourceError(f"{name} has {count} {kind}: expected at most {most}")
    for node in nodes:
        if node.node_id >= MAX_NODE_ID:
            raise SourceError(f"{name} has NUMA node {node.node_id}: expected a number from 0 to {MAX_NODE_ID - 1}")
    if any(not core.thread_ids for node in nodes for core in node.cores or ()):
        raise SourceError(f"{name} has a core without threads, which cAdvisor never reports")
    topology = CadvisorTopology(tuple(map(_node, nodes)), num_cpus=info.num_cores, num_sockets=info.num_sockets)
    return cadvisor.to_machine(topology, memory=info.memory_capacity or None, hugepages=_pages(info.hugepages))


def _node(node: _Node) -> CadvisorNodeTopology:
    reported = CadvisorNode(
        node.node_id,
        memory=node.memory,
        hugepages=_pages(node.hugepages),
        distances=None if node.distances is None else tuple(node.distances),
    )
    cores = []
    for core in node.cores or ():
        uncore = tuple(cache.id for cache in core.uncore_caches or ())
        cores.append(CadvisorCore(core.core_id, core.socket_id, tuple(core.thread_ids), uncore))
    caches = tuple(cache.id for cache in node.caches or () if cache.level == 3)
    return CadvisorNodeTopology(reported, tuple(cores), caches)


def _pages(pages: list[_Pages] | None) -> tuple[HugePages, ...]:
    return tuple(HugePages(size=each.page_size * 1024, count=each.num_pages) for each in pages or ())
