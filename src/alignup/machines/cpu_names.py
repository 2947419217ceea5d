"""The model of the CPUs and their caches, for pictures: nothing is decided by them, so what is missing is no gap."""

import re

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.machines.file_reader import FileReader
from alignup.machines.topology import CPU

_MODEL = re.compile(r"^(?:model name|cpu model|Model)[ \t]*:[ \t]*([^\n]{1,100})$", re.MULTILINE)
_SIZE = re.compile(r"([0-9]{1,9})([KM]?)", re.ASCII)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
_KINDS = {"Data": "d", "Instruction": "i", "Unified": ""}
_MAX_CACHES = 8


def read_model(files: FileReader) -> str:
    """The model of the first CPU; empty if the system does not tell."""
    text = (files.read("proc/cpuinfo") or "") if files.has("proc/cpuinfo") else ""
    found = _MODEL.search(text)
    return " ".join(found[1].split()) if found else ""


def read_caches(files: FileReader, online: CpuSet) -> tuple[tuple[str, int], ...]:
    """The caches of the first CPU: name and bytes, the nearest first."""
    first = next(bits.members(online), None)
    here = f"{CPU}/cpu{first}/cache"
    if first is None or not files.has(here):
        return ()
    found = []
    for number in files.read_numbered(here, "index")[:_MAX_CACHES]:
        level, kind, size = (_text(files, f"{here}/index{number}/{name}") for name in ("level", "type", "size"))
        amount = _SIZE.fullmatch(size)
        if level.isascii() and level.isdigit() and kind in _KINDS and amount:
            found.append((f"L{level}{_KINDS[kind]}", int(amount[1]) * _UNITS[amount[2]]))
    return tuple(sorted(dict(found).items()))


def _text(files: FileReader, path: str) -> str:
    return (files.text(path) or "") if files.has(path) else ""
