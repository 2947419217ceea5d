"""Terminal pictures: complete, narrow, and readable without color."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.machine import Cpu, Device, Machine, NumaNode
from alignup.machines.synthetic import parse
from alignup.picture.machine_text import draw_text
from alignup.picture.text_format import Line, display_width, plain, to_ascii
from tests.effort import examples
from tests.picture import gallery
from tests.picture.gallery import GPU, decorated, hosts


def shown(machine: Machine) -> str:
    return "\n".join(map(plain, draw_text(machine)))


def test_a_small_machine_gives_a_small_picture():
    assert [plain(line).replace("  ", "").replace("──", "") for line in draw_text(gallery.tiny())] == [
        "1 socket · 1 NUMA node · 2 cores · 2 CPUs",
        "memory 4 GiB",
        "┌─ Socket 0 · NUMA node 0 ─┐",
        "│ memory4 GiB│",
        "│ CPUs01 │",
        "└┘",
    ]


@given(decorated(), st.integers(60, 130))
@settings(max_examples=examples(40))
def test_no_line_is_too_wide_and_boxes_are_closed(machine, width):
    lines = draw_text(machine, width=width)

    for line in lines:
        text = plain(line)
        assert display_width(text) <= width
        assert text.isprintable()
        if text[0] in "┌│└":
            assert display_width(text) == width
            assert text[-1] in "┐│┘"


@given(hosts())
@settings(max_examples=examples(40))
def test_a_busy_host_fits_too(host):
    lines = draw_text(host.machine, host.ledger)

    assert all(display_width(plain(line)) <= 80 and plain(line).isprintable() for line in lines)


@given(decorated())
@settings(max_examples=examples(40))
def test_ascii_is_the_same_picture(machine):
    usual = draw_text(machine)
    poor = [to_ascii(line) for line in usual]

    assert [display_width(plain(line)) for line in usual] == [len(plain(line)) for line in poor]
    assert all(plain(line).isascii() for line in poor)


def cpus_named(lines: list[Line]) -> list[int]:
    """Every CPU in a picture, as often as it appears; CPU cells are recognized by their style."""
    named = []
    for line in lines:
        for cell in line:
            if cell.style == "plain" and cell.text.strip("█▓▒░"):
                run, _, step = cell.text.rstrip(",").partition(" by ")
                named += list(bits.members(bits.parse(run)))[:: int(step or 1)]
    return named


@given(decorated().map(lambda machine: replace(machine, devices=())))
@settings(max_examples=examples(40))
def test_every_cpu_appears_once(machine):
    named = cpus_named(draw_text(machine))

    # A list too scattered to show ends with how many it names in all.
    scattered = any("in all)" in plain(line) for line in draw_text(machine))
    expected = [cpu.id for cpu in machine.cpus]
    assert sorted(named) == sorted(expected) or (scattered and set(named) < set(expected))
    assert len(named) == len(set(named))


@pytest.mark.parametrize(
    ("shape", "lines"),
    [
        pytest.param("pack:2 numa:1 core:16 pu:2", 16, id="2 times 32 CPUs"),
        pytest.param("pack:2 numa:4 l3:2 core:8 pu:2", 70, id="8 nodes, 256 CPUs"),
        pytest.param("pack:4 numa:2 l3:8 core:16 pu:2", 70, id="8 nodes of 256 CPUs each"),
        pytest.param("pack:16 numa:1 core:8 pu:2", 20, id="16 nodes"),
        pytest.param("pack:64 numa:16 core:16 pu:2", 7, id="1024 nodes"),
    ],
)
def test_wide_machines_fold(shape, lines):
    machine = parse(shape)

    drawn = draw_text(machine)

    assert len(drawn) <= lines
    assert sorted(cpus_named(drawn)) == [cpu.id for cpu in machine.cpus]


def test_nodes_without_cpus_fold():
    text = shown(gallery.superchip())

    assert "node 10     186 GiB · near node 0" in text
    assert "nodes 28-35  8 nodes, each no memory · near node 1" in text
    assert "10/120" in text
    assert text.count("\n") < 30


def test_many_devices_fold_except_held_and_unhealthy_ones():
    devices = [Device(GPU, f"vf{number}", nodes=1, healthy=number != 7) for number in range(64)]
    machine = replace(gallery.tiny(), devices=tuple(devices))

    text = shown(machine)

    assert "63: vf0 … vf63  vf7 unhealthy" in text


def test_a_core_with_threads_on_two_caches_is_shown_twice():
    cpus = (Cpu(0, core=0, socket=0, node=0, cache=1), Cpu(1, core=0, socket=0, node=0, cache=2))

    text = shown(Machine(cpus, (NumaNode(0),)))

    assert "cache 1     0 " in text
    assert "cache 2     1 " in text


def test_a_busy_host_lists_its_holders():
    host = gallery.busy()

    text = "\n".join(map(plain, draw_text(host.machine, host.ledger)))

    assert "0r,1r    2A,3A    4A,5A" in text
    assert "gpu-0=A  gpu-1=A" in text
    assert "s shared    34 CPUs shared by default/web-7c9" in text
    assert "B           default/database  CPUs  10-13" in text
    assert "2 GiB reserved  45 GiB held  12 GiB free" in text


def test_devices_of_claims_are_beside_those_of_plugins_with_their_holders():
    host = gallery.claimed()

    text = "\n".join(map(plain, draw_text(host.machine, host.ledger, width=100)))

    first, second = text.split("Socket 1")
    assert "gpu.example.com (DRA, H100):  gpu-0=A  gpu-1=A " in first
    assert "gpu.example.com (DRA, H100):  gpu-2=B,C  gpu-3 " in second
    assert "C           default/infer-1  gpu.example.com (DRA, H100) gpu-2  claim default/shared-gpu" in text
    host.release("uid-infer-0")
    assert "gpu-2=B  gpu-3 " in "\n".join(map(plain, draw_text(host.machine, host.ledger, width=100)))


def test_hostile_names_stay_inside_their_box():
    machine = replace(gallery.tiny(), devices=(Device("\x1b[2J", "\u202e\n" + "W" * 500, nodes=1),))

    lines = [plain(line) for line in draw_text(machine)]

    assert any("\\x1b[2J:" in line for line in lines)
    assert all(line.isprintable() and len(line) <= 80 for line in lines)
