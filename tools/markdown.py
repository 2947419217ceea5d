"""Text and tables in Markdown."""

from collections.abc import Iterable, Iterator, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    yield from (f"| {' | '.join(map(cell, row))} |" for row in rows)


def cell(text: str) -> str:
    """*text* on one line, for a cell of a table."""
    return escape(" ".join(text.split())).replace("|", "\\|")


def escape(text: str) -> str:
    return text.replace("<", "&lt;")
