"""The recording in the README shows what the commands print."""

import re
from xml.etree import ElementTree as ET

import pytest

from tests.console_runner import ROOT, parse_commands
from tools import recording

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def text():
    return recording.OUTPUT.read_text("utf-8")


def test_it_is_up_to_date(text):
    assert recording.render() == text, "run make recording"


def test_it_is_in_the_readme_with_the_commands_that_it_shows():
    readme = (ROOT / "README.md").read_text("utf-8")
    documented = {tuple(sorted(command.split())) for command, _ in parse_commands(readme)}

    assert str(recording.OUTPUT.relative_to(ROOT)) in readme
    for command in recording.COMMANDS:
        assert all(len(line) <= recording.WIDTH - len("$ ") for line in command)
        assert tuple(sorted("".join(line.rstrip("\\") for line in command).split())) in documented


def test_it_is_small_and_loads_nothing(text):
    assert len(text) < 40_000
    assert re.findall(r"https?://[^\"'\s]+", text) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in text


def test_every_line_becomes_visible_in_the_clip(text):
    root = ET.fromstring(text)  # noqa: S314 - our own file
    lines = [float(line.attrib["y"]) for line in root.iter(f"{SVG}text")]
    (clip,) = root.iterfind(f".//{SVG}clipPath/{SVG}rect")
    bottom = float(clip.attrib["y"]) + float(clip.attrib["height"])
    moves = [int(move) for move in re.findall(r"translateY\((-?\d+)px\)", text)]

    assert lines == sorted(lines)
    assert bottom - recording._LINE < max(lines) + min(moves) < bottom  # noqa: SLF001
