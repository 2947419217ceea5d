"""A compact table of the distances between NUMA nodes: nodes with equal distances share a row and a column."""

from collections.abc import Sequence
from dataclasses import dataclass

from alignup.align.distances import Distances
from alignup.picture.text_format import format_list

MAX_SINGLE_ROWS = 8  #: up to this number, each node has its own row
MAX_ROWS = 16
_MAX_COMPARED = 256  #: with more nodes, they are not compared

Matrix = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class DistanceTable:
    """Distances from each group of nodes (rows) to each other (columns)."""

    groups: tuple[tuple[int, ...], ...]
    cells: tuple[tuple[str, ...], ...]
    note: str = ""  #: an explanation below the table

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(format_list, self.groups))


def build_table(distances: Distances) -> DistanceTable:
    """The table of *distances*; a machine with too many different nodes gets only a note with the range."""
    ids, matrix = distances.ids, distances.matrix
    if len(ids) <= MAX_SINGLE_ROWS:
        return DistanceTable(tuple((id_,) for id_ in ids), tuple(tuple(map(str, row)) for row in matrix))
    groups = _group_equal(matrix) if len(ids) <= _MAX_COMPARED else [[index] for index in range(len(ids))]
    if len(groups) > MAX_ROWS:
        own = [matrix[index][index] for index in range(len(ids))]
        far = [value for a, row in enumerate(matrix) for b, value in enumerate(row) if a != b]
        note = f"{_range(own)} to itself, {_range(far)} to others"
        return DistanceTable((), (), note)
    cells = tuple(tuple(_cell(matrix, a, b=b) for b in groups) for a in groups)
    pairs = any("/" in cell for row in cells for cell in row)
    note = "where two are given: to itself / to the others of its row" if pairs else ""
    return DistanceTable(tuple(tuple(ids[index] for index in group) for group in groups), cells, note)


def _group_equal(matrix: Matrix) -> list[list[int]]:
    """Groups of indexes that can be swapped without changing the matrix."""
    columns = tuple(zip(*matrix, strict=True))
    groups: list[list[int]] = []
    for index in range(len(matrix)):
        home = next((group for group in groups if _are_equal((matrix, columns), group[0], b=index)), None)
        if home is None:
            groups.append([index])
        else:
            home.append(index)
    return groups


def _are_equal(views: Sequence[Matrix], a: int, *, b: int) -> bool:
    """Whether two nodes have equal distances to themselves, to each other, and (*views*) to and from all others."""
    matrix = views[0]
    if matrix[a][a] != matrix[b][b] or matrix[a][b] != matrix[b][a]:
        return False
    others = [other for other in range(len(matrix)) if other not in {a, b}]
    return all(view[a][other] == view[b][other] for view in views for other in others)


def _cell(matrix: Matrix, a: Sequence[int], *, b: Sequence[int]) -> str:
    if a is not b:
        return str(matrix[a[0]][b[0]])
    return f"{matrix[a[0]][a[0]]}/{matrix[a[0]][a[1]]}" if len(a) > 1 else str(matrix[a[0]][a[0]])


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"
