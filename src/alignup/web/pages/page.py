"""The frame of every page, the headers that protect it, and the static files."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from alignup.web.pages.html import Content, element, group
from alignup.web.responses import HEADERS

HTML = "text/html"
STATIC = "/static"

#: Nothing from other servers, no script or style in the page itself, no frames, forms to this server only.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Mapping[str, str] = {
    **HEADERS,
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    # Not no-referrer: browsers would send forms with the origin null.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}

_FILES = {"pages.css": "text/css", "pages.js": "text/javascript", "icon.svg": "image/svg+xml"}
_LINE = "<!DOCTYPE html>\n"

Link = tuple[str, str]  #: text and path


def page_response(  # noqa: PLR0913 - all parts of a page
    title: str,
    *content: Content,
    links: Sequence[Link] = (),
    status: int = 200,
    events: str | None = None,
    headers: Mapping[str, str] | None = None,
    refresh: str | None = None,
) -> Response:
    """A page.

    *links* lead to the other pages. With *events*, the path of an event stream, the script renews the parts of the page
    that have the attribute ``data-live`` after each event. *refresh* is the path to continue at.
    """
    return Response(
        _LINE
        + render_page(title, *content, links=links, events=events, refresh=refresh).encode("utf-8", "replace").decode(),
        status_code=status,
        media_type=HTML,
        headers={**PAGE_HEADERS, **(headers or {})},
    )


def render_page(
    title: str, *content: Content, links: Sequence[Link] = (), events: str | None = None, refresh: str | None = None
) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="refresh", content=f"0; url={refresh}") if refresh else None,
        element("title", f"{title} · Alignup"),
        element("link", rel="icon", href=f"{STATIC}/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href=f"{STATIC}/pages.css"),
        element("script", src=f"{STATIC}/pages.js", defer=True),
    )
    menu = [element("li", element("a", text, href=where)) for text, where in links]
    body = element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#content"),
        element(
            "header",
            element("p", element("strong", "Alignup"), class_="brand"),
            element("nav", element("ul", menu), aria_label="Pages") if menu else None,
            element("p", "", class_="connection", id="connection", role="status") if events else None,
        ),
        element("main", element("h1", title), *content, id="content", tabindex="-1"),
        data_events=events,
    )
    return element("html", head, body, lang="en").markup


def section(title: str, *content: Content, id_: str, live: bool = False, count: int | None = None) -> Content:
    """A part of a page; a *live* one is renewed after events."""
    heading = group(title, element("span", count, class_="count") if count is not None else None)
    return element(
        "section",
        element("h2", heading, id=f"{id_}-title"),
        *content,
        id=id_,
        data_live=live,
        aria_labelledby=f"{id_}-title",
    )


def static_routes() -> list[Route]:
    """The style sheet, the script and the icon, which contain nothing secret."""

    def serve(name: str) -> Route:
        async def handle(_request: Request) -> Response:
            return Response(
                static_file(name), media_type=_FILES[name], headers={**PAGE_HEADERS, "Cache-Control": "no-cache"}
            )

        return Route(f"{STATIC}/{name}", handle)

    return list(map(serve, _FILES))


@cache
def static_file(name: str) -> str:
    """A static file; the style sheet with the styles of pictures."""
    text = (files(__package__) / "static" / name).read_text("utf-8")
    if name.endswith(".css"):
        from alignup.picture import svg_elements  # noqa: PLC0415 - few agents are asked for a page

        text += "\n" + svg_elements.css(plots=True)
    return text
