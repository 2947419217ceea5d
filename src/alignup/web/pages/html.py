"""HTML from Python calls. Text is escaped unless it was built here, so a name can never become markup.

    element("li", element("a", pod.name, href=path("/pods", pod.uid)), class_="pod")

A ``str`` is text. :class:`Html` is markup, and only this module creates it, except for :func:`trusted`, which is for
the pictures and plots of ``alignup.picture``.
"""

from collections.abc import Iterable
from html import escape
from typing import Final, final
from urllib.parse import quote, urlencode


@final
class Html:
    """Markup. It is no ``str``, so that it cannot be joined with text by mistake."""

    __slots__ = ("markup",)

    def __init__(self, markup: str, *, key: object) -> None:
        if key is not _KEY:
            raise TypeError("only alignup.web.pages.html creates Html: use element()")
        self.markup = markup


_KEY: Final = object()

Content = str | int | Html | None | Iterable["Content"]  #: ``None``: nothing
Attribute = str | int | bool | None  #: ``None`` and ``False``: the attribute is left out

#: Elements without content and end tag.
_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})
_LINKS = frozenset({"action", "formaction", "href", "src"})


def element(name: str, /, *content: Content, **attributes: Attribute) -> Html:
    """An element; ``class_`` is the attribute ``class``, ``aria_label`` is ``aria-label``.

    Links lead to this server only: ``ValueError`` for others, such as ``javascript:``.
    """
    head = f"<{name}{''.join(_attribute(*one) for one in attributes.items())}>"
    if name in _VOID:
        return _html(head)
    return _html(f"{head}{_markup(content)}</{name}>")


def group(*content: Content) -> Html:
    """Several elements, without one around them."""
    return _html(_markup(content))


def trusted(markup: str) -> Html:
    """Markup of ``alignup.picture``, which escapes what it contains."""
    return _html(markup)


def path(*parts: str | int, **query: str | int | None) -> str:
    """A path of this server: the first part as it is, the others escaped; parameters that are ``None`` are left out."""
    first, *rest = parts
    where = "/".join([str(first), *(quote(str(part), safe="") for part in rest)])
    given = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    return f"{where}?{urlencode(given)}" if given else where


def _html(markup: str) -> Html:
    return Html(markup, key=_KEY)


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    shown = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {shown}"
    text = str(value)
    if shown in _LINKS and not _is_local(text):
        raise ValueError(f"{shown} must be a path of this server, not {text!r}")
    return f' {shown}="{_escape(text)}"'


def _is_local(link: str) -> bool:
    # Browsers read a backslash as a slash, so /\host is another server, too.
    return link[:1] in {"#", "?"} or (link[:1] == "/" and link[1:2] not in {"/", "\\"})


def _markup(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Html):
        return content.markup
    if isinstance(content, str | int):
        return _escape(str(content))
    return "".join(map(_markup, content))


def _escape(text: str) -> str:
    """Escape markup, and replace what no HTML document may contain."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
    return escape(text)
