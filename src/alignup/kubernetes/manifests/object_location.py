"""Where the objects of a file are, for messages: file, document and line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from alignup.documents.line_numbers import find_line
from alignup.kubernetes.manifests.yaml_documents import ParsedDocument

_STEP = re.compile(r"\.?([A-Za-z]+)|\[([^]]*)\]")


@dataclass(frozen=True, slots=True)
class SourceLocation:
    file: str
    document: int | None = None  #: from 1; ``None``: the file has only one
    line: int | None = None  #: from 1; ``None``: unknown

    def __str__(self) -> str:
        document = f", document {self.document}" if self.document else ""
        line = f", line {self.line}" if self.line else ""
        return f"{self.file}{document}{line}"


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """An object of a document: the document itself, or an item of a list."""

    file: str
    document: ParsedDocument
    part: Any
    path: str = ""  #: in the document
    several: bool = False  #: whether the file has other documents

    def field(self, inner: str) -> str:
        """A path in this object as a path in the document."""
        return f"{self.path}.{inner}" if self.path and inner else self.path or inner

    def source(self, field: str = "") -> SourceLocation:
        """Where this object, or the innermost object on the way to *field*, begins."""
        document = self.document
        line: int | None = document.line
        for part in (self.part, *self.along(field)):
            line = document.lines.get(id(part), line)
        if document.json:
            inner = find_line(document.json[document.start :], self.field(field)) if field else 0  # only for problems
            line = document.line + inner - 1 if inner else line if self.several else None
        return SourceLocation(self.file, document.number if self.several else None, line)

    def along(self, field: str) -> Iterator[object]:
        """The value at each step of the path *field*; ``None`` where it is absent."""
        part = self.part
        for name, index in _STEP.findall(field):
            if isinstance(part, dict):
                part = part.get(name or index)
            elif isinstance(part, list) and index.isdecimal() and len(index) < 10 and int(index) < len(part):
                part = part[int(index)]
            else:
                part = None
            yield part
