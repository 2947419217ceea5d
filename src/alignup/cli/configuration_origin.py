"""Where a KubeletConfiguration of a command sets a field: in which line of which file, or in ``--set``."""

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from alignup.align.errors import Problem
from alignup.cli.error_format import put_place
from alignup.documents.line_numbers import find_line
from alignup.kubernetes import configuration
from alignup.kubernetes.configuration import ConfigurationText

#: What ``ConfigurationText.name`` has after the name of the file.
_PART = re.compile(r"(?P<file>.*), (?:document (?P<document>\d+)|(?P<field>[A-Za-z.]+|items\[0\]))")
_MAX_BYTES = 1 << 20  #: of a file that is searched


class ConfigurationPlace(NamedTuple):
    """The options that make up a configuration."""

    source: ConfigurationText
    changes: tuple[str, ...] = ()

    def locate(self, problem: Problem) -> str:
        """*problem* as ``FILE:LINE: FIELD: what``, as far as the place is known."""
        for change in reversed(self.changes):
            field, key, _ = configuration.parse_override(change)
            inner = f"{field}[{key}" if key else f"{field}["
            if problem.field == field or problem.field.startswith((inner, f"{field}.")):
                return f"--set {change}: {problem}"
        found = _PART.fullmatch(self.source.name)
        file = self.source.origin(problem.field) or (found["file"] if found else self.source.name)
        path = Path(file)
        if not path.exists():
            return str(problem)
        parent = found["field"] if found and found["field"] and file == found["file"] else ""
        if parent == "data.kubelet":
            line, parent = self._line_in_config_map(path, problem.field), ""
        else:
            document = int(found["document"] or 1) if found else 1
            line = find_line(_read(path), ".".join(filter(None, (parent, problem.field))), document=document)
        place = f"{file}:{line}" if line and problem.field else file
        return put_place(f"{parent}.{problem}" if parent else str(problem), place)

    def _line_in_config_map(self, path: Path, field: str) -> int:
        """The line in a ConfigMap whose text is a block below the key."""
        inner = find_line(self.source.text, field)
        outer = find_line(text := _read(path), "data.kubelet")
        lines = text.splitlines()
        is_block = outer and re.search(rb":\s*[|>][-+0-9]*\s*$", lines[outer - 1])
        return outer + inner if is_block and inner else outer


def _read(path: Path) -> bytes:
    if not path.is_file():  # a pipe, which was read already
        return b""
    with suppress(OSError), path.open("rb") as file:
        return file.read(_MAX_BYTES)
    return b""
