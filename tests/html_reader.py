"""A reader of HTML for tests of pages and reports."""

import re
from html.parser import HTMLParser


class HtmlReader(HTMLParser):
    """The tags of a document with their attributes, and its text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[str | None] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of every row of every table."""
    rows = re.findall("<tr>(.*?)</tr>", text)
    return [[HtmlReader(cell).text for cell in re.findall("<t[hd].*?</t[hd]>", row)] for row in rows]
