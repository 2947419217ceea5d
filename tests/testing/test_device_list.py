"""Device lists as text, and which devices a plugin prefers."""

import pytest

from alignup.align.errors import ParseError
from alignup.align.machine import Device
from alignup.testing import Preference, parse_device_list

GPU = "example.com/gpu"


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        pytest.param("2@0,1@1", [0b1, 0b1, 0b10], id="near one node each"),
        pytest.param("1@2+3", [0b1100], id="near two nodes"),
        pytest.param("1,1@", [None, 0], id="without topology, and without nodes"),
        pytest.param("0@1", [], id="zero devices"),
        pytest.param("", [], id="empty"),
    ],
)
def test_device_lists(text, nodes):
    assert parse_device_list(GPU, text) == tuple(
        Device(GPU, f"gpu-{number}", near) for number, near in enumerate(nodes)
    )


@pytest.mark.parametrize("text", ["x", "1@x", "1@0+", "@0", "1,,1", "-1"])
def test_invalid_device_lists(text):
    with pytest.raises(ParseError, match="write it like"):
        parse_device_list(GPU, text)


@pytest.mark.parametrize(
    ("preference", "chosen"),
    [
        pytest.param(Preference.LOWEST, ("gpu-9", "gpu-1", "gpu-2"), id="lowest"),
        pytest.param(Preference.HIGHEST, ("gpu-9", "gpu-10", "gpu-2"), id="highest"),
    ],
)
def test_preferences_include_the_required_devices(preference, chosen):
    available = ("gpu-1", "gpu-2", "gpu-9", "gpu-10")

    assert preference.choose(available, must_include=("gpu-9",), size=3) == chosen
