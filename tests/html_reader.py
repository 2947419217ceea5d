"""A reader of HTML for tests of pages and reports."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """The tags of a document with their attributes, and its text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[str | None] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value for _, value in attrs]

    def handle_data(self, data):
        self.text += data
