"""Findings that are accepted: by a comment in the manifest, or by a baseline of earlier findings.

A comment ``# alignup: ignore CODE, CODE`` anywhere in a YAML document holds for all workloads of that document.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from alignup import atomic_files
from alignup.align.errors import FileFieldError
from alignup.check.template_check import CheckFinding

VERSION = 1  #: of the baseline
_FIELDS = ("code", "file", "kind", "namespace", "name")  #: of ``CheckFinding.key``
_COMMENT = re.compile(r"#\s*alignup:\s*ignore\s+([A-Za-z]+(?:\s*,\s*[A-Za-z]+)*)")
_SEPARATOR = re.compile(r"---(?:\s|$)")


class IgnoreComments:
    """The comments of one file."""

    def __init__(self, text: str) -> None:
        self._starts = [0]  #: the line before each document, from 1
        self._codes: list[set[str]] = [set()]  #: that its comments ignore
        for number, content in enumerate(text.splitlines(), start=1):
            if _SEPARATOR.match(content):
                self._starts.append(number)
                self._codes.append(set())
            if match := _COMMENT.search(content):
                self._codes[-1] |= {code.strip() for code in match[1].split(",")}

    def codes_at(self, line: int | None) -> Collection[str]:
        """Return the codes that are ignored in the document that has this *line*."""
        return self._codes[bisect_right(self._starts, line or 1) - 1]


def read_baseline(path: Path) -> frozenset[tuple[str, ...]]:
    """Return the keys of accepted findings."""
    content = atomic_files.read(path)
    if content is None:
        raise FileFieldError("there is no such file", file=str(path))
    try:
        document: Any = json.loads(content)
        if document["version"] != VERSION:
            raise FileFieldError(f"has version {document['version']!r}, not {VERSION}", file=str(path))
        return frozenset(tuple(str(entry[name]) for name in _FIELDS) for entry in document["findings"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFieldError("is not a baseline of 'alignup check'", file=str(path)) from error


def write_baseline(path: Path, findings: Iterable[CheckFinding]) -> int:
    """Write the keys of *findings*; return how many there are."""
    keys = sorted({finding.key for finding in findings})
    document = {"version": VERSION, "findings": [dict(zip(_FIELDS, key, strict=True)) for key in keys]}
    atomic_files.write(path, (json.dumps(document, indent=1) + "\n").encode(), mode=0o644)
    return len(keys)


def is_accepted(finding: CheckFinding, codes: Collection[str], baseline: Collection[tuple[str, ...]]) -> bool:
    return finding.answer.code in codes or finding.key in baseline
