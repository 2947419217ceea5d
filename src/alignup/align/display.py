"""How notebooks show values: a picture of a machine, a decision as HTML, and rows for tables.

The code that draws and explains stands above this package, and pandas is not a dependency. Both are imported by name
when a notebook asks for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from typing import Any

Row = dict[str, Any]

_CELL = 'style="text-align:left"'


class Table:
    """A value that has rows."""

    __slots__ = ()

    def to_rows(self) -> list[Row]:
        """Return the rows as dictionaries; sets of CPUs and NUMA nodes are Linux lists, memory is in bytes."""
        raise NotImplementedError

    def to_frame(self) -> Any:  # noqa: ANN401 - pandas may be missing
        """Return the rows as a DataFrame of pandas; ``ImportError`` if pandas is not installed."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            message = "to_frame needs pandas: pip install pandas; to_rows returns the same rows without it"
            raise ImportError(message) from error
        return pandas.DataFrame(self.to_rows())


class Pictured(Table):
    """A machine, or a host with what its pods hold."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(import_module("alignup.picture").svg(self))


class Explained(Table):
    """A decision."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(import_module("alignup.explain").html(self))


class HtmlTable(Table):
    """Results that are a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_table(self.to_rows())


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return *rows* as an HTML table with all columns that have a value."""
    columns = dict.fromkeys(name for row in rows for name, value in row.items() if value not in ("", None))

    def line(tag: str, values: Iterable[object]) -> str:
        cells = "".join(f"<{tag} {_CELL}>{escape(str(value))}</{tag}>" for value in values)
        return f"<tr>{cells}</tr>"

    body = "".join(line("td", [row.get(name, "") for name in columns]) for row in rows)
    return f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"
