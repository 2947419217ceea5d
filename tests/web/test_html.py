"""HTML that is built from text of strangers."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.web.pages.html import Html, element, group, path, trusted


class Reader(HTMLParser):
    """Reads the tags with their attributes, and the text."""

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


@given(st.text())
def test_text_stays_text_in_content_and_attributes(text):
    read = Reader(element("p", text, element("b", text), title=text, data_name=text).markup)

    assert read.tags == [("p", ("title", "data-name")), ("b", ())]
    assert "<" not in element("p", text).markup[3:-4]
    printable = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
    assert read.text == printable * 2
    assert read.values == [printable] * 2


@pytest.mark.parametrize(
    "link",
    ["javascript:alert(1)", "//evil.example/", "/\\evil.example", "https://evil.example/", "data:text/html,x", ""],
)
@pytest.mark.parametrize("attribute", ["href", "src", "action", "formaction"])
def test_links_lead_to_this_server_only(link, attribute):
    with pytest.raises(ValueError, match="must be a path of this server"):
        element("a", "x", **{attribute: link})


@given(st.text(min_size=1))
def test_a_part_of_a_path_cannot_leave_it(part):
    found = path("/pods", part.encode("utf-8", "replace").decode(), before=3, pod=None)

    assert found.count("/") == 2
    assert found.endswith("?before=3")
    assert element("a", "x", href=found)


def test_only_the_module_itself_makes_markup_of_text():
    with pytest.raises(TypeError, match="use element"):
        Html("<b>", key=None)

    assert group("<", element("br"), None, ["a", 1], trusted("<i></i>")).markup == "&lt;<br>a1<i></i>"
    assert element("input", disabled=True, checked=False, value=None).markup == "<input disabled>"
