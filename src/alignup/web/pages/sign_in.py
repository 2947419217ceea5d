"""Sign in to the pages: by a link that is valid once, or with the token of the agent."""

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response

from alignup.web import endpoint
from alignup.web.access import AccessRules
from alignup.web.pages.html import element
from alignup.web.pages.page import page_response
from alignup.web.responses import ProblemError
from alignup.web.sessions import SIGN_IN, set_cookie

FORM = "application/x-www-form-urlencoded"
_MAX_FORM, _FORM_SECONDS = 64 << 10, 10.0


def sign_in_page(access: AccessRules, *, problem: str = "") -> Response:
    """The page for browsers without a session."""
    form = element(
        "form",
        element("label", "Token of the agent", for_="token"),
        element("input", id="token", name="token", type="password", autocomplete="off", required=True),
        element("button", "Sign in", type="submit"),
        method="post",
        action=SIGN_IN,
    )
    return page_response(
        "Sign in",
        element("p", problem, class_="banner", role="alert") if problem else None,
        element("p", "Print a link that signs you in, on the machine of the agent: ", element("code", "alignup web")),
        form if access.token is not None else None,
        status=401,
    )


async def sign_in(request: Request, access: AccessRules) -> Response:
    """Redeem the code of a link, or check the token of the form."""
    check_site(request)
    if request.method == "HEAD":  # of programs that look at links; they must not use them up
        return page_response("Sign in")
    if request.method == "POST":
        form = await read_form(request)
        if not access.is_token(form.get("token", "")):
            return sign_in_page(access, problem="This is not the token of the agent.")
    elif not access.sessions.redeem(request.query_params.get("code", "")):
        what = "This link was used before, or is too old." if "code" in request.query_params else ""
        return sign_in_page(access, problem=what)
    # No redirect: after one from another site, such as a chat, the browser would not send the cookie.
    return page_response(
        "Signed in",
        element("p", element("a", "Continue", href="/")),
        headers={"Set-Cookie": set_cookie(request, access.sessions.start())},
        refresh="/",
    )


def check_site(request: Request) -> None:
    """Refuse what a page of another site sends in the name of the user, other than following a link."""
    headers = request.headers
    site = headers.get("sec-fetch-site", "none")  # clients other than browsers do not send it
    if request.method in {"GET", "HEAD"}:
        foreign = site not in {"none", "same-origin"} and headers.get("sec-fetch-mode") != "navigate"
    else:
        origin = headers.get("origin")
        own = f"{request.url.scheme}://{headers.get('host', '')}"
        foreign = site not in {"none", "same-origin"} or (origin is not None and origin != own)
    if foreign:
        raise ProblemError(403, "This request comes from a page of another site.")


async def read_form(request: Request, *, limit: int = _MAX_FORM) -> dict[str, str]:
    """The fields of a form; of fields with one name, the first."""
    body = await endpoint.receive_body(request, limit=limit, seconds=_FORM_SECONDS, types=(FORM,), expected=FORM)
    try:
        fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=100)
    except ValueError as error:  # also of UTF-8
        raise ProblemError(400, f"The form cannot be read: {error}") from error
    return {name: values[0].replace("\r\n", "\n") for name, values in fields.items()}  # browsers send CRLF
