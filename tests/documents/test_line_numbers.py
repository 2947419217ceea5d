"""The line of a field is found in YAML and in JSON."""

import pytest

from alignup.documents.line_numbers import MAX_TEXT, find_line

YAML = """# a comment
a: 1
"b":
  - x: {y: 1}
    z: 2
  - [1,
     2]
? [c]
: {d: 1}
limits:
  memory.available: 1
e: &anchor
  f: 1
g: *anchor
---
a: 2
"""
JSON = '{"a": 1,\n "b": [\n  {"x": {"y": 1},\n   "z": 2}\n ]}'


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("", 2),
        ("a", 2),
        ("b", 3),
        ("b[0]", 4),
        ("b[0].x.y", 4),
        ("b[0].z", 5),
        ("b[1][1]", 7),
        ("b[7].x", 3),
        ("b[0].z.none", 5),
        ("limits[memory.available]", 11),
        ("e.f", 13),
        ("g.f", 14),
        ("none", 0),
        ("none[0].a", 0),
    ],
)
def test_in_yaml(field, line):
    assert find_line(YAML, field) == line
    assert find_line(YAML.encode(), field) == line


@pytest.mark.parametrize(("field", "line"), [("a", 1), ("b[0].x", 3), ("b[0].z", 4), ("b[0].w", 3)])
def test_in_json(field, line):
    assert find_line(JSON, field) == line


def test_in_another_document():
    assert find_line(YAML, "a", document=2) == 16
    assert find_line(YAML, "a", document=3) == 0


@pytest.mark.parametrize("text", ["a: [", b"\xff\xfe\xff", "", "\x01", " " * (MAX_TEXT + 1)])
def test_texts_that_cannot_be_read_have_no_lines(text):
    assert find_line(text, "b") == 0
