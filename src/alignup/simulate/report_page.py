"""The frame of HTML reports that need no other file, and their parts.

Text is escaped by ``alignup.web.pages.html``, as on the web pages.
"""

from collections.abc import Iterable, Sequence
from importlib.resources import files

from alignup.align.workload.names import is_hugepages
from alignup.picture import svg_elements
from alignup.picture.plots import ComparedValue, bar_plot
from alignup.picture.svg_elements import Drawable, svg_inline
from alignup.picture.text_format import clean, format_size
from alignup.web.pages.html import Content, Html, element, group, trusted

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, *content: Content) -> str:
    """The file."""
    style = (files("alignup.web.pages") / "static" / "pages.css").read_text("utf-8") + svg_elements.css(plots=True)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", trusted(style)),
    )
    body = element("main", element("h1", title), *content)
    return "<!DOCTYPE html>\n" + element("html", head, element("body", body), lang="en").markup + "\n"


def section(title: str, *content: Content) -> Html:
    return element("section", element("h2", title), *content)


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    return element("dl", [group(element("dt", name), element("dd", text)) for name, text in pairs])


def figure(drawn: Drawable, name: str) -> Html:
    """*name* is for those who do not see the picture."""
    return element("div", trusted(svg_inline(drawn, name)), class_="machine")


def side_by_side(figures: Iterable[Html]) -> Html:
    """As many of *figures* in a row as there is room for."""
    return element("div", figures, class_="machine")


def bars(title: str, labels: Sequence[str], values: Sequence[float], texts: Sequence[str], *, style: int = 0) -> Html:
    """A bar for each label; *texts* are the values for people."""
    compared = [ComparedValue(*one) for one in zip(labels, values, texts, strict=True)]
    return figure(bar_plot(clean(title), compared, style=style), clean(title))


def data_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, row_heads: bool = False) -> Html:
    """*row_heads*: the first cell of a row says what the others are."""
    head = element("tr", [element("th", clean(one), scope="col") for one in heads])
    body = []
    for row in rows:
        cells = [element("td", clean(cell)) for cell in row]
        if row_heads:
            cells[0] = element("th", clean(row[0]), scope="row")
        body.append(element("tr", cells))
    return element("div", element("table", element("thead", head), element("tbody", body)), class_="table")


def format_amount(resource: str, amount: float) -> str:
    if resource == "memory" or is_hugepages(resource):
        return format_size(round(amount))
    return f"{amount:,.1f}".removesuffix(".0")
