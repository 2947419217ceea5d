"""Distances between NUMA nodes, by node id."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import MachineError

MAX_DISTANCE = 1 << 31  #: exclusive; keeps sums exact in a double


@dataclass(frozen=True, slots=True, init=False)
class Distances:
    """A matrix of distances by node id; it may be asymmetric, as on some real machines."""

    ids: tuple[int, ...]
    matrix: tuple[tuple[int, ...], ...]
    #: node → node → the sum of both directions, the diagonal once: what a node adds to the sum over all pairs
    _both: Mapping[int, Mapping[int, int]] = field(compare=False, repr=False)

    def __init__(self, matrix: Mapping[int, Mapping[int, int]]) -> None:
        if problems := tuple(_matrix_problems(matrix)):
            raise MachineError(problems)
        ids = tuple(sorted(matrix))
        both = {a: {b: matrix[a][b] + (matrix[b][a] if a != b else 0) for b in ids} for a in ids}
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "matrix", tuple(tuple(matrix[a][b] for b in ids) for a in ids))
        object.__setattr__(self, "_both", both)

    @classmethod
    def of_rows(cls, rows: Mapping[int, Sequence[int]]) -> "Distances":
        """Return distances from one row per node, in either of two forms.

        A row longer than the largest node id has a column for every id. A row with one entry per node has a column for
        every existing node, ascending (the kernel's form, of which the kubelet reads a wrong column).
        """
        ids = sorted(rows)
        problems = [f"NUMA node {node} has no distances" for node in ids if not rows[node]]
        matrix = {}
        for node in ids:
            row = rows[node]
            if len(row) > ids[-1]:
                matrix[node] = {other: row[other] for other in ids}
            elif len(row) == len(ids):
                matrix[node] = dict(zip(ids, row, strict=True))
            elif row:
                problems.append(f"NUMA node {node} has {len(row)} distances on a machine of {len(ids)} NUMA nodes")
        if problems:
            raise MachineError(problems)
        return cls(matrix)

    def between(self, a: int, b: int) -> int:
        return self.matrix[self.ids.index(a)][self.ids.index(b)]

    def both_ways(self, node: int) -> Mapping[int, int]:
        """Return what *node* adds to a sum over all ordered pairs with each other node; its own distance once."""
        return self._both[node]

    def total(self, nodes: NodeSet) -> int:
        """Return the sum over all ordered pairs of *nodes*, including each node with itself."""
        chosen = list(bits.members(nodes))
        return sum(self._both[a][b] for i, a in enumerate(chosen) for b in chosen[: i + 1])


def _matrix_problems(matrix: Mapping[int, Mapping[int, int]]) -> Iterator[str]:
    for a, row in sorted(matrix.items()):
        for b in sorted(matrix):
            if b not in row:
                yield f"NUMA node {a} has no distance to NUMA node {b}"
            elif not 0 <= row[b] < MAX_DISTANCE:
                yield f"NUMA node {a} has distance {row[b]} to NUMA node {b}, not a number from 0 to {MAX_DISTANCE - 1}"
