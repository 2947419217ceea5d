"""The table of distances is complete, in few rows."""

from hypothesis import given
from hypothesis import strategies as st

from alignup.align.distances import Distances
from alignup.picture.layout import MAX_ROWS, build_distance_table
from tests.picture.gallery import superchip
from tests.strategies import distances


@st.composite
def grouped(draw: st.DrawFn) -> Distances:
    """Distances between many nodes of a few types."""
    types = draw(st.lists(st.integers(0, 3), min_size=1, max_size=24))
    far = {(a, b): draw(st.integers(11, 13)) for a in range(4) for b in range(4)}
    return Distances(
        {a: {b: 10 if a == b else far[types[a], types[b]] for b in range(len(types))} for a in range(len(types))}
    )


@given(grouped() | st.integers(1, 20).flatmap(lambda count: distances(range(count))))
def test_every_distance_can_be_read_from_the_table(known):
    table = build_distance_table(known)

    if not table.groups:
        assert len(known.ids) > MAX_ROWS
        assert table.note
        return
    home = {id_: row for row, group in enumerate(table.groups) for id_ in group}
    assert sorted(home) == list(known.ids)
    for a in known.ids:
        for b in known.ids:
            to_itself, _, inside = table.cells[home[a]][home[b]].partition("/")
            assert known.between(a, b) == int(inside if inside and a != b else to_itself)


def test_nodes_with_equal_distances_share_a_row():
    known = superchip().distances
    assert known is not None

    table = build_distance_table(known)

    assert table.names == ("0", "1", "2-18", "19-35")
    assert table.cells[2] == ("80", "120", "10/120", "120")
