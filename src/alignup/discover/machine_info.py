"""A machine from cAdvisor's ``MachineInfo`` in JSON, as its API and the kubelet's ``/spec/`` return it."""

import msgspec

from alignup.align.errors import SourceError
from alignup.align.machine import CadvisorNode, HugePages, Machine
from alignup.discover import cadvisor
from alignup.discover.cadvisor import CadvisorCore, CadvisorNodeTopology, CadvisorTopology


class _Pages(msgspec.Struct):
    page_size: int  #: KiB
    num_pages: int


class _Cache(msgspec.Struct):
    id: int = 0
    level: int = 0


class _Core(msgspec.Struct):
    core_id: int
    thread_ids: list[int]
    socket_id: int = 0
    uncore_caches: list[_Cache] | None = None


class _Node(msgspec.Struct):
    node_id: int
    memory: int = 0
    hugepages: list[_Pages] | None = None
    cores: list[_Core] | None = None
    caches: list[_Cache] | None = None
    distances: list[int] | None = None


class _Info(msgspec.Struct):
    num_cores: int
    topology: list[_Node] | None
    num_sockets: int = 0
    memory_capacity: int = 0
    hugepages: list[_Pages] | None = None


def convert(found: object, *, name: str = "the text") -> Machine:
    try:
        info = msgspec.convert(found, _Info)
    except msgspec.ValidationError as error:
        raise SourceError(f"{name} is not a valid MachineInfo of cAdvisor: {error}") from error
    if any(not core.thread_ids for node in info.topology or () for core in node.cores or ()):
        raise SourceError(f"{name} has a core without threads, which cAdvisor never reports")
    nodes = tuple(map(_node, info.topology or ()))
    topology = CadvisorTopology(nodes, num_cpus=info.num_cores, num_sockets=info.num_sockets)
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
