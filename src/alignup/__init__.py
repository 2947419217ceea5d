"""Alignup: the NUMA nodes, CPUs, memory and devices of each container, and why.

``__init__.pyi`` lists the whole public library. Its names are imported on first use, so that the command line starts
quickly. All of them need the standard library only, except ``load_machine``, ``load_settings`` and ``load_pods`` (from
files), ``discover`` (from the running system), ``simulate``, and ``to_document`` and ``from_document`` (JSON).
"""

import re
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_STUB = __loader__.get_data(f"{__file__.removesuffix('.py')}.pyi").decode()
_MODULE_OF = {name: module for module, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - each name is in the stub already


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type depends on the name
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_MODULE_OF[name])
    value = vars(module).get(name) or import_module(f"{_MODULE_OF[name]}.{name}")  # bits is a module itself
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
