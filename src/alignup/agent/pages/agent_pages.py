"""The pages of an agent: the node at ``/``, pods, and decisions."""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from alignup.web import responses
from alignup.web.access import AccessRules, count_authenticated
from alignup.web.pages.html import element
from alignup.web.pages.page import Link, page_response, static_routes
from alignup.web.pages.sign_in import check_site, sign_in, sign_in_page
from alignup.web.responses import ProblemError
from alignup.web.sessions import SIGN_IN

if TYPE_CHECKING:
    from alignup.agent.app import AgentBackend
    from alignup.agent.pages.agent_handlers import AgentHandlers

LINKS: tuple[Link, ...] = (("Node", "/"), ("Decisions", "/decisions"))

PageHandler = Callable[[Request], Awaitable[Response]]


def agent_pages(service: "AgentBackend", access: AccessRules, *, search_seconds: float) -> list[Route]:
    """The routes of the pages; *search_seconds* limit the search for changes that would admit a pod."""

    @cache
    def handlers() -> "AgentHandlers":
        from alignup.agent.pages.agent_handlers import AgentHandlers  # noqa: PLC0415 - 2 MB that few agents need

        return AgentHandlers(service, search_seconds, LINKS)

    async def sign_in_route(request: Request) -> Response:
        return await sign_in(request, access)

    return [
        *static_routes(),
        Route(SIGN_IN, guarded(sign_in_route, None), methods=["GET", "POST"]),
        Route("/", guarded(lambda request: handlers().node(request), access)),
        Route("/decisions", guarded(lambda request: handlers().decisions(request), access)),
        Route("/decisions/{id:int}", guarded(lambda request: handlers().decision(request), access)),
        Route("/pods/{uid}", guarded(lambda request: handlers().pod(request), access)),
    ]


def guarded(handler: PageHandler, access: AccessRules | None, *, links: Sequence[Link] = ()) -> PageHandler:
    """*handler* for those whom *access* allows (``None``: for all); problems become pages."""

    async def handle(request: Request) -> Response:
        try:
            check_site(request)
            if access is not None:
                if not access.allows(request):
                    return sign_in_page(access)
                count_authenticated(request)
            return await handler(request)
        except ProblemError as problem:
            found = problem
        except responses.BackendError as error:
            found = responses.backend_problem(error)
        document = found.document
        return page_response(
            document.title,
            element("p", document.detail, class_="banner", role="alert"),
            links=LINKS if access else links,
            status=found.status,
            headers=found.headers,
        )

    return handle
