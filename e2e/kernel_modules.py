"""Kernel modules in the order in which ``insmod`` can load them."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


def load_order(names: Iterable[str], dependencies: Mapping[str, Iterable[str]]) -> list[str]:
    """Return *names* and everything that they depend on, each after its *dependencies*."""
    order: dict[str, None] = {}

    def add(name: str) -> None:
        if name not in order:
            for dependency in dependencies.get(name, ()):
                add(dependency)
            order[name] = None

    for name in names:
        add(name)
    return list(order)


def read_dependencies(directory: Path) -> dict[str, list[str]]:
    """Return the modules on which each module below *directory* depends.

    They are in ``modules.dep``. A package of a kernel that is only unpacked has none, but modules that name others.
    """
    file = directory / "modules.dep"
    if file.exists():
        return parse_modules_dep(file.read_text())
    return {_name(str(path)): named_dependencies(path.read_bytes()) for path in directory.rglob("*.ko")}


def parse_modules_dep(text: str) -> dict[str, list[str]]:
    """Return the modules on which each module depends, the last first: in that order ``modprobe`` loads them."""
    parts = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {_name(path): [_name(other) for other in reversed(others.split())] for path, _, others in parts}


def named_dependencies(module: bytes) -> list[str]:
    """Return the modules that the module in a file says it needs."""
    match = _DEPENDS.search(module)
    return [name.replace("-", "_") for name in match[1].decode().split(",") if name] if match else []


def _name(path: str) -> str:
    """Return the name of a module, in which ``-`` and ``_`` are the same."""
    return path.rpartition("/")[2].partition(".")[0].replace("-", "_")
