"""A machine from one line of text in hwloc's synthetic format: ``pack:2 numa:2 l3:1 core:8 pu:2``.

Each item is a level of a tree: a type and the number of objects in each object of the previous level. ``[numa]``
attaches a NUMA node to every object of the previous level without being a level. Types can be abbreviated to two
letters, or omitted altogether (``2 2 8 2``). Attributes are in parentheses: ``numa:2(memory=64GiB)``,
``pu:2(indexes=numa:core)``.

Objects are numbered like in hwloc: depth first from 0, or by ``indexes``. That is a complete list (``0,4,1,5``), or
loops with the fastest first, as numbers (``2*8:1*2``: every second of 16 objects, then the others) or as types
(``numa:core``: the first CPU of the first core of each node, then those of the second cores, and so on). If a CPU has
several nodes, the innermost, first written one is its node and the others are memory-only, as in Linux. Only L3 caches
matter here; dies and groups do not. Without packages there is one socket; without cores every CPU is one. hwloc
ignores what it does not understand; this module raises ``ParseError``.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from alignup.align.errors import ParseError
from alignup.align.machine import (
    MAX_CPU_ID,
    MAX_CPUS,
    MAX_NODE_ID,
    MAX_NODES,
    CadvisorReport,
    Cpu,
    Distances,
    HugePages,
    Machine,
    NumaNode,
)

MAX_LEVELS = 128
MAX_TEXT = 1 << 20  #: characters; a list of all indexes takes a tenth

DEFAULT_MEMORY = 1 << 30  #: bytes per node, as in hwloc

_TYPES = {
    "numanode": "numa",
    "node": "numa",
    "package": "package",
    "socket": "package",
    "die": "die",
    "core": "core",
    "pu": "pu",
    "group": "group",
    "tile": "group",
    "module": "group",
}
#: For a text without types: the levels in the order of their importance, and in the order of nesting.
_USUAL_KINDS = ("numa", "package", "core", "l2", "l1", "l3", "l1i")
_OUTER_FIRST = ("package", "numa", "l3", "l2", "l1", "l1i", "core")

_UNITS = {"": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {f"{_letter}b": pow(1000, _power), f"{_letter}ib": pow(1024, _power)}

_ITEM = re.compile(
    r"\[\s*(?P<attached>[^\s:()\[\]]+)\s*(?:\((?P<theirs>[^()]*)\)\s*)?\]"
    r"|(?:(?P<type>[^\s:()\[\]]+):)?(?P<count>[^\s:()\[\]]+)(?:\((?P<attributes>[^()]*)\))?"
)
_CACHE = re.compile(r"(l[1-3]i|l[1-5])(?:(?<!i)[du])?(?:c|ca|cac|cach|cache)?")
_COUNT = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,18})([a-z]*)", re.ASCII)
_LIST = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*", re.ASCII)
_LOOP = re.compile(r"([1-9][0-9]{0,8})\*([1-9][0-9]{0,8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Attached:
    """NUMA nodes, one on every object of a level; a NUMA level has one of these."""

    memory: int | None  #: ``None``: not given
    indexes: str | None


@dataclass(frozen=True, slots=True)
class _Level:
    token: str  #: the original text
    kind: str | None  #: ``None``: not given
    count: int  #: in each object of the previous level
    indexes: str | None = None
    attached: tuple[_Attached, ...] = ()


@dataclass(frozen=True, slots=True)
class _Tree:
    levels: tuple[_Level, ...]  #: the machine, and all levels from the outermost to the CPUs

    def width(self, depth: int) -> int:
        return prod(level.count for level in self.levels[: depth + 1])

    def depth(self, kind: str) -> int | None:
        return next((depth for depth, level in enumerate(self.levels) if level.kind == kind), None)

    @property
    def cpus(self) -> int:
        return self.width(len(self.levels))


def parse(
    text: str,
    *,
    memory: int = DEFAULT_MEMORY,
    hugepages: tuple[HugePages, ...] = (),
    distances: tuple[int, int] | None = None,
) -> Machine:
    """Return the machine that *text* describes.

    *memory* is the default size of a node in bytes; every node with memory has *hugepages*; *distances* are the
    distance of a node to itself and to any other node (hwloc's synthetic machines have none).
    """
    tree = _tree(text)
    nodes, homes = _nodes(tree, memory=memory, hugepages=hugepages)
    pus = _ids(tree, "pu") or ()
    cores = _ids(tree, "core") or pus
    sockets = _ids(tree, "package") or [0] * tree.cpus
    caches: Sequence[int | None] = _ids(tree, "l3") or [None] * tree.cpus
    cpus = tuple(map(Cpu, pus, cores, sockets, homes, caches))
    matrix = {a.id: {b.id: distances[a is not b] for b in nodes} for a in nodes} if distances else None
    return Machine(
        cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)),
        nodes=tuple(sorted(nodes, key=lambda node: node.id)),
        distances=Distances(matrix) if matrix else None,
        report=_report(tree, cpus, homes),
    ).checked()


def _tree(text: str) -> _Tree:
    if len(text) > MAX_TEXT:
        raise ParseError(f"the description has {len(text)} characters: expected at most {MAX_TEXT}")
    levels = [_Level("", "machine", 1)]
    for item in _items(text):
        if item["attached"]:
            if _kind(item["attached"], item[0]) != "numa":
                raise ParseError(f"{item[0]!r}: expected '[numa]', nothing else can be attached")
            nodes = _attached(item["theirs"] or "", item[0])
            levels[-1] = replace(levels[-1], attached=(*levels[-1].attached, nodes))
            continue
        levels.append(_level(item))
        if len(levels) > MAX_LEVELS + 1 or prod(level.count for level in levels) > MAX_CPUS:
            raise ParseError(f"{item[0]!r} makes the machine too large: expected at most {MAX_CPUS} CPUs")
    if len(levels) == 1:
        raise ParseError(f"{text!r} describes no machine: expected levels such as 'pack:2 numa:1 core:8 pu:2'")
    return _Tree(_typed(levels))


def _items(text: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        item = _ITEM.match(text, position)
        if not item:
            raise ParseError(f"cannot read {text[position:]!r}: expected a level such as 'core:8', or '[numa]'")
        yield item
        position = item.end()


def _level(item: re.Match[str]) -> _Level:
    token, kind = item[0], _kind(item["type"], item[0]) if item["type"] else None
    if not _COUNT.fullmatch(item["count"]):
        raise ParseError(f"{token!r}: expected a type and a number of objects from 1, such as 'core:8'")
    if kind == "numa":
        return _Level(token, kind, int(item["count"]), attached=(_attached(item["attributes"] or "", token),))
    attributes = _attributes(item["attributes"] or "", kind=kind, token=token)
    return _Level(token, kind, int(item["count"]), attributes.get("indexes"))


def _attached(attributes: str, token: str) -> _Attached:
    values = _attributes(attributes, kind="numa", token=token)
    return _Attached(_bytes(values["memory"], token) if "memory" in values else None, values.get("indexes"))


def _kind(name: str, token: str) -> str:
    """Return the canonical type of *name*: caches as ``l3`` or ``l1i``, others under one name each."""
    word = name.lower()
    if cache := _CACHE.fullmatch(word):
        return cache[1]
    if word.startswith("gr"):
        word = word.rstrip("0123456789")
    for full, kind in _TYPES.items():
        if len(word) > 1 and full.startswith(word):
            return kind
    raise ParseError(f"{token!r}: {name!r} is not a type: expected pack, die, group, numa, l1 to l5, core or pu")


def _attributes(text: str, *, kind: str | None, token: str) -> dict[str, str]:
    """Return attribute → value, all valid for *kind*; unused sizes are validated as well."""
    sizes = {"numa": ("memory", "memorysidecachesize")}.get(kind or "", ("size",) if (kind or "")[:1] == "l" else ())
    values: dict[str, str] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        if name not in {*sizes, "indexes"} or name in values or not value:
            expectation = " and ".join(f"'{name}=…'" for name in (*sizes, "indexes"))
            raise ParseError(f"{token!r}: cannot use {part!r}: expected {expectation}, each at most once")
        values[name] = value
        if name in sizes:
            _bytes(value, token)
    return values


def _bytes(size: str, token: str) -> int:
    match = _SIZE.fullmatch(size.lower())
    if not match or match[2] not in _UNITS:
        raise ParseError(f"{token!r}: {size!r} is not a size: expected bytes, or a number with kB, KiB, MB, … TiB")
    return int(match[1]) * _UNITS[match[2]]


def _typed(levels: Sequence[_Level]) -> tuple[_Level, ...]:
    """Return the levels with their types; ``ParseError`` if they cannot be levels of one machine."""
    machine, *inner, last = levels
    if last.kind not in {"pu", None}:
        raise ParseError(f"{last.token!r} comes last: expected 'pu', the CPUs, below it")
    tokens = [level.token for level in inner if level.kind is None]
    if tokens and len(tokens) < len(inner):
        raise ParseError(f"{tokens[0]!r}: expected a type here, since other levels have one")
    has_attached = any(level.attached for level in levels if level.kind != "numa")
    if tokens:
        # hwloc gives these types to the levels of a text without types.
        usual_kinds = [kind for kind in _USUAL_KINDS if kind != "numa" or not has_attached][: len(inner)]
        groups = ["group"] * (len(inner) - len(usual_kinds))
        inner = list(map(_usual, inner, groups + sorted(usual_kinds, key=_OUTER_FIRST.index)))
    all_levels = (*inner, replace(last, kind="pu"))
    kinds: set[str | None] = set()
    for level in all_levels:
        if level.kind in kinds and level.kind != "group":
            raise ParseError(f"{level.token!r}: expected at most one level of {level.kind}")
        if level.kind == "package" and "core" in kinds:
            raise ParseError(f"{level.token!r}: expected packages above cores")
        if level.kind == "numa" and (has_attached or len(level.attached) > 1):
            raise ParseError(f"{level.token!r}: expected NUMA nodes either as a level or attached, not both")
        kinds.add(level.kind)
    return (
        (machine, *all_levels)
        if has_attached or "numa" in kinds
        else (machine, _usual(_Level("", None, 1), "numa"), *all_levels)
    )


def _usual(level: _Level, kind: str) -> _Level:
    if kind != "numa":
        return replace(level, kind=kind)
    return replace(level, kind=kind, indexes=None, attached=(_Attached(None, level.indexes), *level.attached))


def _nodes(tree: _Tree, *, memory: int, hugepages: tuple[HugePages, ...]) -> tuple[list[NumaNode], list[int]]:
    """Return all nodes, and for each CPU the id of its node."""
    attached_nodes = [(depth, node_group) for depth, level in enumerate(tree.levels) for node_group in level.attached]
    total = sum(tree.width(depth) for depth, _ in attached_nodes)
    if total > MAX_NODES:
        raise ParseError(f"the machine has {total} NUMA nodes: expected at most {MAX_NODES}")
    indexes = [node_group.indexes for _, node_group in attached_nodes if node_group.indexes]
    if len(indexes) > 1:
        raise ParseError(f"'indexes={indexes[1]}': expected once, for all attached NUMA nodes together")
    # hwloc numbers attached nodes by the end of their objects, inner objects before outer ones.
    places = sorted(
        (tree.cpus // tree.width(depth) * (number + 1), -depth, order)
        for order, (depth, _) in enumerate(attached_nodes)
        for number in range(tree.width(depth))
    )
    innermost = min(range(len(attached_nodes)), key=lambda order: (-attached_nodes[order][0], order))
    nodes, homes = [], []
    for number, (_, _, order) in zip(_numbers(tree, total, *indexes, below=MAX_NODE_ID), places, strict=True):
        node_memory = attached_nodes[order][1].memory
        size = memory if node_memory is None else node_memory
        nodes.append(NumaNode(number, memory=size, hugepages=hugepages if size else ()))
        if order == innermost:
            homes.append(number)
    return nodes, [home for home in homes for _ in range(tree.cpus // len(homes))]


def _ids(tree: _Tree, kind: str) -> list[int] | None:
    """Return for each CPU the id of its object of *kind*; ``None`` if there is no level of this kind."""
    depth = tree.depth(kind)
    if depth is None:
        return None
    indexes = tree.levels[depth].indexes
    width = tree.width(depth)
    return [
        number for number in _numbers(tree, width, *([indexes] if indexes else [])) for _ in range(tree.cpus // width)
    ]


def _report(tree: _Tree, cpus: tuple[Cpu, ...], homes: Sequence[int]) -> CadvisorReport | None:
    """Return cAdvisor's report: an L3 that equals a node is part of the node, so no uncore cache is reported."""
    depth = tree.depth("l3")
    if depth is None or tree.width(depth) != len(set(homes)):
        return None
    reported_cpus = tuple(replace(cpu, cache=None) for cpu in cpus)
    return CadvisorReport(cpus=reported_cpus, num_cpus=len(cpus), num_sockets=len({cpu.socket for cpu in cpus}))


def _numbers(tree: _Tree, total: int, indexes: str | None = None, *, below: int = MAX_CPU_ID) -> Sequence[int]:
    """Return the ids of *total* objects, all *below* a limit, in the order of the tree."""
    if indexes is None:
        return range(total)
    if _LIST.fullmatch(indexes):
        numbers = [int(number) for number in indexes.split(",")]
        if len(numbers) != total or len(set(numbers)) != total or max(numbers) >= below:
            raise ParseError(f"'indexes={indexes}': expected {total} different numbers below {below}")
        return numbers
    numbers, weight = [0] * total, 1
    for step, times in _loops(tree, total, indexes):
        numbers = [number + position // step % times * weight for position, number in enumerate(numbers)]
        weight *= times
    if set(numbers) != set(range(total)):
        raise ParseError(f"'indexes={indexes}': expected loops that number each of {total} objects")
    return numbers


def _loops(tree: _Tree, total: int, indexes: str) -> list[tuple[int, int]]:
    """Return the step and count of each loop, the fastest first; a missing last loop has step 1."""
    parts = indexes.split(":")
    if len(parts) > MAX_LEVELS:
        raise ParseError(f"'indexes=…': {len(parts)} loops, expected at most {MAX_LEVELS}")
    matches = [_LOOP.fullmatch(part) for part in parts]
    if all(matches):
        loops = [(int(loop[1]), int(loop[2])) for loop in matches if loop]
    else:
        loops = _loops_by_type(tree, total, indexes)
    total_times = prod(times for _, times in loops)
    if total_times < total and min(step for step, _ in loops) == total // total_times:
        loops.append((1, total // total_times))
        total_times *= total // total_times
    if total_times != total:
        raise ParseError(f"'indexes={indexes}': expected loops over {total} objects, but they make {total_times}")
    return loops


def _loops_by_type(tree: _Tree, total: int, indexes: str) -> list[tuple[int, int]]:
    token = f"indexes={indexes}"
    widths = []
    for name in indexes.split(":"):
        kind = _kind(name, token)
        # hwloc has its own numbers for groups, so a numbered group is not a level here.
        depth = None if kind == "pu" or (kind == "group" and name[-1].isdecimal()) else tree.depth(kind)
        if depth is None or total % tree.width(depth):
            raise ParseError(f"{token!r}: {name!r} cannot be a loop: expected the type of an outer level")
        widths.append((depth, tree.width(depth)))
    if len(set(widths)) < len(widths):
        raise ParseError(f"{token!r}: expected each type once")
    loops = []
    for depth, width in widths:
        outer = max((other for other in widths if other[0] < depth), default=(0, 1))
        loops.append((total // width, width // outer[1]))
    return loops
