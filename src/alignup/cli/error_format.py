"""The form of error messages: ``FILE:LINE: FIELD: what is wrong``, or ``--OPTION: what is wrong``."""

import re
from collections.abc import Sequence

#: ``in FILE, document 2, line 7, Pod web (remark)`` or ``in --option value``.
_PLACE = re.compile(
    r"in (?P<place>(?!the |pod |group ).+?)(?:, (?P<document>document \d+))?(?:, line (?P<line>\d+))?"
    r"(?:, (?P<named>[A-Z]\w* \S+))?(?: \((?P<remark>.*)\))?"
)
_LINE = re.compile(r"line (?P<line>\d+): (?P<what>.*)", re.DOTALL)


def locate(what: Sequence[str], where: str) -> tuple[list[str], str]:
    """Put the place that *where* names before each of *what*; return the messages, and what *where* says besides."""
    found = _PLACE.fullmatch(where)
    if found is None:
        return list(what), where
    option, _, value = found["place"].partition(" ") if found["place"].startswith("--") else ("", "", "")
    names = [name for name in (option, f"{value}/" if value else "", "" if option else found["place"]) if name]
    place = option or (f"{found['place']}:{found['line']}" if found["line"] else found["place"])
    messages = [one if one.startswith(tuple(names)) else put_place(one, place) for one in what]
    more = [text for text in (found["document"], found["named"], found["remark"]) if text]
    return messages, ", ".join(more)


def put_place(message: str, place: str) -> str:
    """Put *place*, a file or an option, before *message*, which may begin with a line."""
    if in_line := _LINE.fullmatch(message):
        return f"{place}:{in_line['line']}: {in_line['what']}"
    return f"{place}: {message}"
