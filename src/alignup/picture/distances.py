"""Distances between NUMA nodes as a table that stays small: nodes no distance tells apart share a row and a column."""

from collections.abc import Sequence
from dataclasses import dataclass

from alignup.align.distances import Distances
from alignup.picture.text_format import format_list

#: Up to so many nodes each has a row of its own.
SINGLE = 8
#: The largest table, in rows.
LARGEST = 16
#: Above this nodes are not even compared.
_COMPARED = 256

Matrix = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class DistanceTable:
    """Distances from each group of nodes (rows) to each (columns)."""

    groups: tuple[tuple[int, ...], ...]
    cells: tuple[tuple[str, ...], ...]
    note: str = ""  #: what the table alone would not say

    @property
    def names(self) -> tuple[str, ...]:
        """The groups as lists."""
        return tuple(map(format_list, self.groups))


def build_table(distances: Distances) -> DistanceTable:
    """The table of *distances*; of machines with too many different nodes only a note on the range."""
    ids, matrix = distances.ids, distances.matrix
    if len(ids) <= SINGLE:
        return DistanceTable(tuple((id_,) for id_ in ids), tuple(tuple(map(str, row)) for row in matrix))
    groups = _twins(matrix) if len(ids) <= _COMPARED else [[place] for place in range(len(ids))]
    if len(groups) > LARGEST:
        own = [matrix[place][place] for place in range(len(ids))]
        far = [value for a, row in enumerate(matrix) for b, value in enumerate(row) if a != b]
        note = f"{_range(own)} to itself, {_range(far)} to others"
        return DistanceTable((), (), note)
    cells = tuple(tuple(_cell(matrix, a, b=b) for b in groups) for a in groups)
    note = (
        "where two are given: to itself / to the others of its row"
        if any("/" in cell for row in cells for cell in row)
        else ""
    )
    return DistanceTable(tuple(tuple(ids[place] for place in group) for group in groups), cells, note)


def _twins(matrix: Matrix) -> list[list[int]]:
    """Places that could change names without anybody noticing, together."""
    columns = tuple(zip(*matrix, strict=True))
    groups: list[list[int]] = []
    for place in range(len(matrix)):
        home = next((group for group in groups if _same((matrix, columns), group[0], b=place)), None)
        if home is None:
            groups.append([place])
        else:
            home.append(place)
    return groups


def _same(views: Sequence[Matrix], a: int, *, b: int) -> bool:
    """Whether two places have the same distance to themselves, to each other, and (*views*) to and from all others."""
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
