"""Trends in tiles."""

import re

from hypothesis import given
from hypothesis import strategies as st

from alignup.picture.sparkline import draw_sparkline


def test_too_few_values_have_no_trend():
    assert draw_sparkline([], name="x") == draw_sparkline([3.0], name="x") == ""


@given(st.lists(st.floats(0, 1e12), min_size=2, max_size=80))
def test_the_line_goes_from_left_to_right_inside_the_picture(values):
    picture = draw_sparkline(values, name='a "trend"')

    line = re.search(r'<polyline points="([^"]+)"', picture)
    assert line is not None
    points = [tuple(map(float, point.split(","))) for point in line[1].split()]
    assert len(points) == len(values)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert all(0 <= x <= 100 and 0 <= y <= 24 for x, y in points)
    assert 'aria-label="a &quot;trend&quot;"' in picture
