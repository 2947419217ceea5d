"""Web pages: HTML from Jinja2 templates, one style sheet, one script, and nothing from other servers.

Every text in a page is escaped, so a name can never become markup; only the pictures of ``alignup.picture`` are markup.
A program has a template for each of its pages; the frame around them and the pages to sign in are here.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import jinja2
from jinja2.ext import Extension
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from alignup.align import bits
from alignup.align.host import Host
from alignup.documents.codec import timestamp
from alignup.picture import svg_elements
from alignup.picture.machine_svg import draw_parts
from alignup.picture.numa_bars import measure_bars, stranded_places, sum_bars
from alignup.picture.occupancy import Holder, format_amount, format_block
from alignup.picture.text_format import clean, format_bits, pluralize
from alignup.placement.free_capacity import largest_requests
from alignup.web import responses
from alignup.web.api_operations import receive_body
from alignup.web.authentication import SIGN_IN, AccessRules, count_authenticated, set_cookie
from alignup.web.responses import HEADERS, ProblemError
from alignup.web.tiles import capacity_tiles

HTML = "text/html"
FORM = "application/x-www-form-urlencoded"
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

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: of outcomes
MARKS = {"admitted": "✓", "rejected": "✗", "waiting": "…", "asking": "?"}
_MAX_FORM, _FORM_SECONDS = 64 << 10, 10.0

Link = tuple[str, str]  #: text and path
PageHandler = Callable[[Request], Awaitable[Response]]


def file_response(content: str, name: str) -> Response:
    """Return a page of its own, which browsers save as a file with this *name*; it has its styles, and no scripts."""
    name = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)
    headers = {
        **PAGE_HEADERS,
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox",
        "Content-Disposition": f'attachment; filename="{name}"',
    }
    return Response(content.encode("utf-8", "replace"), media_type=HTML, headers=headers)


class Pages:
    """The pages of a program, from the folder ``templates`` of *package*; *links* lead from each to the others.

    *subject* says which host or cluster they are about. Templates can call *functions* by name, also as filters.
    """

    def __init__(
        self,
        package: str,
        *,
        links: Sequence[Link],
        subject: str = "",
        functions: Mapping[str, Any] | None = None,
    ) -> None:
        loaders = [jinja2.PackageLoader(name) for name in dict.fromkeys((package, __package__))]
        self.templates = jinja2.Environment(
            loader=jinja2.ChoiceLoader(loaders),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=_printable,
            extensions=[_JoinedLines],
        )
        callables = {**_FUNCTIONS, **(functions or {})}
        self.templates.filters |= callables
        self.templates.globals |= {"links": links, "marks": MARKS, "subject": subject, **callables}

    def render(self, template: str, **values: Any) -> str:  # noqa: ANN401 - of templates
        """Return the HTML of *template*; what no HTML document may contain is replaced."""
        return self.templates.get_template(template).render(values).encode("utf-8", "replace").decode()

    def response(
        self,
        template: str,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **values: Any,  # noqa: ANN401 - of templates
    ) -> Response:
        content = self.render(template, **values)
        return Response(content, status_code=status, media_type=HTML, headers={**PAGE_HEADERS, **(headers or {})})

    def guard(self, handler: PageHandler, access: AccessRules | None) -> PageHandler:
        """Return *handler* for the users whom *access* allows (``None``: for all); problems become pages."""

        async def handle(request: Request) -> Response:
            try:
                check_site(request)
                if access is not None:
                    if not access.allows(request):
                        return self._sign_in_form(access)
                    count_authenticated(request)
                return await handler(request)
            except ProblemError as error:
                problem = error
            except responses.ServiceError as error:
                problem = responses.service_problem(error)
            return self.problem_page(problem)

        return handle

    def problem_page(self, problem: ProblemError) -> Response:
        document = problem.document
        values = {"title": document.title, "detail": document.detail}
        return self.response("problem.html", status=problem.status, headers=problem.headers, **values)

    def missing(self, access: AccessRules | None, *, hint: str) -> Callable[[Request, Exception], Awaitable[Response]]:
        """Return the handler of unknown paths: a page for browsers, a problem document with *hint* for programs."""

        async def raise_missing(request: Request) -> Response:
            raise ProblemError(404, f"There is no page {request.url.path} here.")

        page = self.guard(raise_missing, access)

        async def handle(request: Request, _error: Exception) -> Response:
            if HTML in request.headers.get("accept", ""):
                return await page(request)
            return ProblemError(404, f"There is no {request.url.path}; {hint}").response()

        return handle

    def sign_in_route(self, access: AccessRules) -> Route:
        """Build the page that signs a browser in: by a link that is valid once, or with the token."""

        async def sign_in(request: Request) -> Response:
            if request.method == "HEAD":  # of programs that look at links; they must not use them up
                return self._sign_in_form(access, status=200)
            if request.method == "POST":
                form = await read_form(request)
                if not access.is_token(form.get("token", "")):
                    return self._sign_in_form(access, problem="This is not the token of the agent.")
            elif not access.sessions.redeem(request.query_params.get("code", "")):
                problem = "This link was used before, or is too old." if "code" in request.query_params else ""
                return self._sign_in_form(access, problem=problem)
            # No redirect: after one from another site, such as a chat, the browser would not send the cookie.
            cookie = set_cookie(request, access.sessions.start())
            return self.response("signed_in.html", headers={"Set-Cookie": cookie})

        return Route(SIGN_IN, self.guard(sign_in, None), methods=["GET", "POST"])

    def _sign_in_form(self, access: AccessRules, *, problem: str = "", status: int = 401) -> Response:
        return self.response("sign_in.html", status=status, problem=problem, has_token=access.token is not None)


class _JoinedLines(Extension):
    """Lets templates have a line for each element without a space between elements on the page."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        del name, filename
        return re.sub(r"(?<=[>}])\s*\n\s*(?=[<{])", "", source)


def _printable(value: object) -> object:
    """Replace what no HTML document may contain; ``None`` becomes nothing."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup) and not value.isprintable():
        return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in value)
    return value


def path(*parts: str | int, **query: str | int | None) -> str:
    """Return a path of this server: the first part as it is, the others escaped, and parameters that are not ``None``.

    An underscore at the end of a parameter's name is left out.
    """
    first, *rest = parts
    path = "/".join([str(first), *(quote(str(part), safe="") for part in rest)])
    parameters = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(parameters)}" if parameters else path


def time_texts(seconds: float) -> tuple[str, str]:
    """Return a time for programs, and in UTC for people; the script shows the time zone of the reader."""
    text = timestamp(seconds)
    return text, text[:19].replace("T", " ") + " UTC"


def describe_machine(host: Host) -> dict[str, Any]:
    """Return what pages show of the machine of a host and of its ledger."""
    numa = measure_bars(host)
    places = stranded_places(numa)
    parts = draw_parts(host.machine, host.ledger, stranded=places)
    occupancy = parts.layout.occupancy
    largest = largest_requests(host)
    totals = sum_bars(numa)
    best = {name: max(amounts.get(name, 0) for amounts in largest.values()) for name in totals} if largest else {}
    return {
        "facts": " · ".join([parts.layout.title, *parts.layout.facts]),
        "pictures": parts.pictures,
        "uses": [
            (use, cpus.bit_count())
            for use, cpus in occupancy.split(bits.members(parts.layout.cpus)).items()
            if use.holder is None
        ],
        "has_holders": bool(occupancy.holders),
        "has_stranded": bool(places),
        "holders": {holder.uid: holder for holder in occupancy.holders},
        "sharing": occupancy.sharing,
        "numa": numa,
        "largest": largest,
        "tiles": capacity_tiles(totals, best),
    }


def format_devices(holder: Holder) -> str:
    devices = [f"{clean(resource)} {', '.join(map(clean, ids))}" for resource, ids in holder.devices]
    return ", ".join([*devices, *(f"claim {clean(claim)}" for claim in holder.claims)])


_FUNCTIONS: Mapping[str, Any] = {
    "clean": clean,
    "format_amount": format_amount,
    "format_bits": format_bits,
    "format_block": format_block,
    "format_devices": format_devices,
    "path": path,
    "pluralize": pluralize,
    "time": time_texts,
}


def check_site(request: Request) -> None:
    """Refuse what a page of another site sends in the name of the user, other than following a link."""
    headers = request.headers
    site = headers.get("sec-fetch-site", "none")  # clients other than browsers do not send it
    if request.method in {"GET", "HEAD"}:
        foreign = site not in {"none", "same-origin"} and headers.get("sec-fetch-mode") != "navigate"
    else:
        origin = headers.get("origin")
        expected_origin = f"{request.url.scheme}://{headers.get('host', '')}"
        foreign = site not in {"none", "same-origin"} or (origin is not None and origin != expected_origin)
    if foreign:
        raise ProblemError(403, "This request comes from a page of another site.")


async def read_form(request: Request, *, limit: int = _MAX_FORM) -> dict[str, str]:
    """Return the fields of a form; of fields with one name, the first."""
    body = await receive_body(request, limit=limit, seconds=_FORM_SECONDS, types=(FORM,), expected=FORM)
    try:
        fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=100)
    except ValueError as error:  # also of UTF-8
        raise ProblemError(400, f"The form cannot be read: {error}") from error
    return {name: values[0].replace("\r\n", "\n") for name, values in fields.items()}  # browsers send CRLF


def static_routes() -> list[BaseRoute]:
    """Build the style sheet, the scripts and the icon, which contain nothing secret."""

    async def serve(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in file_names:
            return ProblemError(404, f"There is no file {name}.").response()
        headers = {**PAGE_HEADERS, "Cache-Control": "no-cache"}
        return Response(static_file(name), media_type=_TYPES[PurePosixPath(name).suffix], headers=headers)

    folder = files(__package__) / "static"
    file_names = {file.name for file in folder.iterdir() if PurePosixPath(file.name).suffix in _TYPES}
    return [Route("/static/{name}", serve)]


@cache
def static_file(name: str) -> str:
    """Return a static file; the style sheet with the styles of pictures."""
    text = (files(__package__) / "static" / name).read_text("utf-8")
    return f"{text}\n{svg_elements.css(plots=True)}" if name == "pages.css" else text
