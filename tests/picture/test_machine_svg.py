"""SVG pictures: well-formed, self-contained, complete, without overlapping text."""

import re
import unicodedata
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.machines.synthetic import parse
from alignup.picture.machine_svg import draw_parts, draw_svg
from tests.effort import examples
from tests.picture import gallery
from tests.picture.gallery import GPU, decorated, hosts

SVG = "{http://www.w3.org/2000/svg}"


def read(picture: str) -> ET.Element:
    return ET.fromstring(picture)  # noqa: S314 - our own text


class Room(NamedTuple):
    """The box of a text in DejaVu Sans Mono, one of the widest monospaced fonts."""

    left: float
    top: float
    right: float
    bottom: float
    text: str


def room(element: ET.Element) -> Room:
    size, text = float(element.attrib["font-size"]), element.text or ""
    x, y = float(element.attrib["x"]), float(element.attrib["y"])
    width = size * sum(1.0 if unicodedata.east_asian_width(char) in "WF" else 0.602 for char in text.strip())
    left = x - width / 2 if element.get("text-anchor") == "middle" else x
    return Room(left, y - 0.8 * size, left + width, y + 0.24 * size, text)


def overlapping(picture: str) -> list[tuple[str, str]]:
    """Texts that overlap."""
    texts = sorted((room(each) for each in read(picture).iter(f"{SVG}text")), key=lambda each: each.top)
    clashes = []
    for place, text in enumerate(texts):
        for other in texts[place + 1 :]:
            if other.top >= text.bottom:
                break
            if text.left < other.right and other.left < text.right and text.text.strip() and other.text.strip():
                clashes.append((text.text, other.text))
    return clashes


def outside(picture: str) -> list[str]:
    """Texts outside of the picture."""
    root = read(picture)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    rooms = [room(each) for each in root.iter(f"{SVG}text")]
    return [each.text for each in rooms if each.left < 0 or each.top < 0 or each.right > width or each.bottom > height]


def data(picture: str, name: str) -> list[str]:
    return [each.attrib[name] for each in read(picture).iter() if name in each.attrib]


@given(decorated())
@settings(max_examples=examples(60))
def test_nothing_overlaps_and_every_cpu_and_device_appears_once(machine):
    picture = draw_svg(machine)

    assert overlapping(picture) == []
    assert outside(picture) == []
    assert sorted(map(int, data(picture, "data-cpu"))) == sorted(cpu.id for cpu in machine.cpus)
    folded = sum(map(int, data(picture, "data-devices")))
    assert len(data(picture, "data-device")) + folded == len(machine.devices)


@given(hosts())
@settings(max_examples=examples(40))
def test_nothing_overlaps_on_a_busy_host(host):
    picture = draw_svg(host.machine, host.ledger)

    assert overlapping(picture) == []
    assert outside(picture) == []
    assert sorted(map(int, data(picture, "data-cpu"))) == sorted(cpu.id for cpu in host.machine.cpus)


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(gallery.tiny(), id="1 node, 2 CPUs"),
        pytest.param(gallery.server(), id="2 times 32 CPUs"),
        pytest.param(parse("pack:2 numa:4 l3:2 core:8 pu:2"), id="8 nodes, 256 CPUs"),
        pytest.param(gallery.large(), id="8 nodes of 256 CPUs each"),
        pytest.param(gallery.superchip(), id="36 nodes"),
        pytest.param(parse("pack:2 numa:1 core:4 pu:8"), id="8 threads per core"),
    ],
)
def test_machines_of_any_size_show_every_cpu_without_overlap(machine):
    picture = draw_svg(machine)

    assert overlapping(picture) == []
    assert outside(picture) == []
    assert len(data(picture, "data-cpu")) == len(machine.cpus)
    assert len(picture) < 256 * 1024


def test_enormous_machines_fold():
    picture = draw_svg(parse("pack:64 numa:16 core:16 pu:2"))

    assert "NUMA nodes 0-1023" in picture
    assert "CPUs 0-32767" in picture
    assert len(picture) < 8192


def test_the_picture_has_a_text_description():
    host = gallery.busy()

    root = read(draw_svg(host.machine, host.ledger))

    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "2 sockets · 2 NUMA nodes · 32 cores · 64 CPUs"
    description = root.findtext(f"{SVG}desc") or ""
    assert "NUMA node 0 on socket 0: CPUs 0-31, 64 GiB, 2 of example.com/gpu, 1 of example.com/nic." in description
    assert "default/train-0 holds CPUs 2-9." in description


def test_devices_of_claims_say_driver_device_and_holders_in_words():
    host = gallery.claimed()

    picture = draw_svg(host.machine, host.ledger)

    assert "gpu.example.com (DRA, H100) gpu-2, held by default/infer-0, default/infer-1" in picture
    assert "gpu.example.com (DRA, H100) gpu-3, free" in picture
    assert "2 of gpu.example.com (DRA, H100)." in (read(picture).findtext(f"{SVG}desc") or "")
    assert overlapping(picture) == []


def test_of_many_pods_those_that_hold_only_memory_are_counted():
    host = gallery.busy()
    settings_of_many = replace(host.settings, max_pods=1_000)
    crowded = Host(host.machine, settings_of_many, ledger=host.ledger)
    for number in range(140):
        assert crowded.admit(gallery.pod(f"small-{number}", cpu="1m", memory="1Mi")).admitted
    assert crowded.admit(gallery.pod("last", cpu="1", memory="1Mi")).admitted

    picture = draw_svg(crowded.machine, crowded.ledger)

    assert "default/train-0" in picture
    assert "default/last" in picture
    assert "default/small-90<" in picture
    assert "default/small-139<" not in picture
    assert re.search(r"and (4\d) pods more with \1 MiB of memory", picture)
    assert overlapping(picture) == []


def test_one_file_has_light_and_dark_mode():
    picture = draw_svg(gallery.server())

    assert "prefers-color-scheme:dark" in picture
    assert not re.search(r"<script|<image|href=|url\(|@import|on\w+=", picture)


def test_names_are_escaped():
    name = "</title><script>alert(1)</script>\"'&\x00"
    machine = replace(gallery.tiny(), devices=(Device(GPU, name, nodes=1), Device(name, "x", nodes=None)))

    picture = draw_svg(machine)

    assert "<script" not in picture
    assert len(data(picture, "data-device")) == 2


def test_letters_and_places_follow_each_other():
    host = gallery.busy()

    picture = draw_svg(host.machine, host.ledger)

    marks = re.findall(r'class="holder(\d)"[^>]*data-cpu="(\d+)"', picture)
    assert [place for place, _ in marks] == ["0"] * 8 + ["1"] * 4 + ["3"] * 6 + ["4"] * 10
    assert all(int(after) - int(before) in {1, 13} for (_, before), (_, after) in pairwise(marks))


def test_memory_is_divided_by_pod():
    host = gallery.busy()

    pictures = "".join(draw_parts(host.machine, host.ledger).pictures)

    for key, name in (("A", "default/train-0"), ("B", "default/database")):
        assert re.search(rf'data-holder="{key}"><title>[0-9.]+ GiB held by {name}</title>', pictures)
    titles = re.findall(r"<title>([0-9.]+) ([GM])iB (?:held|reserved|free|in huge)", pictures)
    drawn = sum(float(size) / {"G": 1, "M": 1024}[unit] for size, unit in titles)
    assert drawn == pytest.approx(2 * 64 + 2 * 5, abs=0.5)  # huge pages have a bar of their own, too
    assert pictures.count('class="hatch"') == 1  # memory is reserved on one NUMA node


def test_what_no_aligned_container_can_get_is_marked():
    host = gallery.busy()

    pictures = "".join(draw_parts(host.machine, host.ledger, stranded={(1, "cpu"), (1, gallery.GPU)}).pictures)
    plain = "".join(draw_parts(host.machine, host.ledger).pictures)

    marked = re.findall(r'<rect class="stranded"[^>]*>(?:<title>([^<]*))?', pictures)
    assert any(title.startswith("CPU ") and title.endswith(", stranded") for title in marked)
    assert f"{gallery.GPU} gpu-3, stranded" in marked
    assert 'class="stranded"' not in plain
