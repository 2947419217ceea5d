"""How far NUMA nodes are from each other, looked up by node id."""

from collections.abc import Iterator, Mapping, Sequence

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import MachineError

#: Distances stay below this, so that their sums are exact in a double.
MAX_DISTANCE = 1 << 31


class Distances:
    """How far each NUMA node is from each other one, looked up by node id.

    Rows may differ from columns (real matrices are sometimes asymmetric).
    """

    __slots__ = ("_both", "_ids", "_matrix")

    def __init__(self, matrix: Mapping[int, Mapping[int, int]]) -> None:
        if problems := tuple(_matrix_problems(matrix)):
            raise MachineError(problems)
        self._ids = tuple(sorted(matrix))
        self._matrix = tuple(tuple(matrix[a][b] for b in self._ids) for a in self._ids)
        #: node → node → both ways added, the diagonal once: what one more node adds to the sum over all pairs
        self._both = {a: {b: matrix[a][b] + (matrix[b][a] if a != b else 0) for b in self._ids} for a in self._ids}

    @classmethod
    def of_rows(cls, rows: Mapping[int, Sequence[int]]) -> "Distances":
        """Distances from one row a node, in either form they are found in.

        A row longer than the largest node id has a column for every id; a row with one entry a node has a column for
        every node there is, in rising order (the kernel's form; the kubelet reads a wrong column there).
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

    @property
    def ids(self) -> tuple[int, ...]:
        """The nodes known here, rising."""
        return self._ids

    @property
    def matrix(self) -> tuple[tuple[int, ...], ...]:
        """Rows and columns in the order of ``ids``."""
        return self._matrix

    def between(self, a: int, b: int) -> int:
        """The distance from *a* to *b*."""
        return self._matrix[self._ids.index(a)][self._ids.index(b)]

    def both_ways(self, node: int) -> Mapping[int, int]:
        """What *node* and each other node add to a sum over all ordered pairs; for *node* itself, its own distance."""
        return self._both[node]

    def total(self, nodes: NodeSet) -> int:
        """The sum over all ordered pairs of *nodes*, each node with itself included."""
        chosen = list(bits.members(nodes))
        return sum(self._both[a][b] for i, a in enumerate(chosen) for b in chosen[: i + 1])

    def average(self, nodes: NodeSet) -> float:
        """``total`` over the number of pairs; the empty set has 0."""
        return self.total(nodes) / nodes.bit_count() ** 2 if nodes else 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Distances) and (self._ids, self._matrix) == (other._ids, other._matrix)

    def __hash__(self) -> int:
        return hash((self._ids, self._matrix))

    def __repr__(self) -> str:
        return f"Distances({dict(zip(self._ids, self._matrix, strict=True))})"


def _matrix_problems(matrix: Mapping[int, Mapping[int, int]]) -> Iterator[str]:
    for a, row in sorted(matrix.items()):
        for b in sorted(matrix):
            if b not in row:
                yield f"NUMA node {a} has no distance to NUMA node {b}"
            elif not 0 <= row[b] < MAX_DISTANCE:
                yield f"NUMA node {a} has distance {row[b]} to NUMA node {b}, not a number from 0 to {MAX_DISTANCE - 1}"
