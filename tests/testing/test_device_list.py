"""Devices in a line of text, and which of them a plugin prefers."""

import pytest

from alignup.align.errors import ParseError
from alignup.align.machine import Device
from alignup.testing import Preference, parse_device_list

GPU = "example.com/gpu"


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        pytest.param("2@0,1@1", [0b1, 0b1, 0b10], id="near one node each"),
        pytest.param("1@2+3", [0b1100], id="near two"),
        pytest.param("1,1@", [None, 0], id="nothing said, and near none"),
        pytest.param("0@1", [], id="no device"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_devices_of_a_text(text, nodes):
    assert parse_device_list(GPU, text) == tuple(
        Device(GPU, f"gpu-{number}", near) for number, near in enumerate(nodes)
    )


@pytest.mark.parametrize("text", ["x", "1@x", "1@0+", "@0", "1,,1", "-1"])
def test_texts_that_are_none(text):
    with pytest.raises(ParseError, match="write it like"):
        parse_device_list(GPU, text)


@pytest.mark.parametrize(
    ("advice", "chosen"),
    [
        pytest.param(Preference.LOWEST, ("gpu-9", "gpu-1", "gpu-2"), id="lowest"),
        pytest.param(Preference.HIGHEST, ("gpu-9", "gpu-10", "gpu-2"), id="highest"),
    ],
)
def test_advice_holds_what_it_must(advice, chosen):
    available = ("gpu-1", "gpu-2", "gpu-9", "gpu-10")

    assert advice.choose(available, must_include=("gpu-9",), size=3) == chosen
