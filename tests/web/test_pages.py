"""Pages with text of strangers: it stays text, and links lead to this server only."""

import re
from pathlib import Path

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alignup
from alignup.web.pages import Pages, path
from tests.html_reader import HtmlReader

TEMPLATES = sorted(Path(alignup.__path__[0]).glob("*/templates/*.html"))
#: Values of links in templates: paths of this server, parts of the page, or what ``path`` returns.
LOCAL = re.compile(
    r"""[/#][^/\\]|/"|\{\{ (?:path|chunk_path|page_path)\('?/?|\{\{ (?:where|action|document|link) \}\}"""
)


@pytest.fixture(scope="module")
def pages():
    return Pages("alignup.agent", links=[("Node", "/")])


@given(text=st.text())
def test_text_stays_text_in_content_and_attributes(pages, text):
    template = pages.templates.from_string(
        '<p title="{{ text }}" data-name="{{ text }}">{{ text }}<b>{{ text }}</b></p>'
    )
    read = HtmlReader(template.render(text=text))

    assert read.tags == [("p", ("title", "data-name")), ("b", ())]
    printable = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
    assert read.text == printable * 2
    assert read.values == [printable] * 2


def test_a_value_that_a_page_lacks_is_an_error(pages):
    with pytest.raises(jinja2.UndefinedError):
        pages.render("problem.html", title="x")


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: f"{template.parts[-3]}/{template.name}")
def test_links_lead_to_this_server_only(template):
    links = re.findall(r'(?:href|src|action|formaction)="(.*?")', template.read_text())

    assert [link for link in links if not LOCAL.match(link)] == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: f"{template.parts[-3]}/{template.name}")
def test_only_pictures_are_markup(template):
    """What is marked as safe comes from ``alignup.picture``."""
    marked = re.findall(r"\{\{ ([^}]*)\|safe \}\}", template.read_text())

    assert set(marked) <= {"picture"}


@given(st.text(min_size=1))
def test_a_part_of_a_path_cannot_leave_it(part):
    link = path("/pods", part.encode("utf-8", "replace").decode(), before=3, pod=None)

    assert link.count("/") == 2
    assert link.endswith("?before=3")
