"""A real Chromium for tests of the web pages, driven by playwright, and what every page must satisfy."""

import base64
import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from e2e.programs import not_installed

Browser: TypeAlias = Any  #: of playwright, which has to be installed only for these tests
Page: TypeAlias = Any

#: Where screenshots for the documentation are written; empty: they are not.
PICTURES = os.environ.get("ALIGNUP_SCREENSHOTS", "")

#: The accessibility checker, from npm; ``make browser`` installs it.
AXE = Path(__file__).parents[1] / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"

PHONE, WIDE, LARGE = {"width": 390, "height": 844}, {"width": 1440, "height": 900}, {"width": 3840, "height": 2160}
TIMEOUT = 120_000  #: milliseconds, on a busy machine

_CONTRAST = Path(__file__).with_name("contrast.js").read_text("utf-8")


def missing() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: run make browser"
    if not AXE.exists():
        return "axe-core is not installed: run make browser"
    return not_installed(["chromium"])


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that runs until the end."""
    sync_playwright = import_module("playwright.sync_api").sync_playwright
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page, and everything that went wrong on it: errors, violations of its policy, requests to other servers."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("console", lambda message: self._note("console", message.text, message.type in {"error", "warning"}))
        page.on("pageerror", lambda error: self._note("error", str(error), is_problem=True))
        page.on("dialog", lambda dialog: self._note("dialog", dialog.message, is_problem=True))
        server = urlsplit(origin).netloc
        page.on("request", lambda request: self._note("request", request.url, urlsplit(request.url).netloc != server))

    def _note(self, kind: str, text: str, is_problem: bool) -> None:  # noqa: FBT001 - the only flag
        if is_problem and "401 (Unauthorized)" not in text:
            self.problems.append(f"{kind}: {text}")


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Page]:  # noqa: ANN401 - of playwright
    """Yield a page at *address*, in a wide window by default; fail if anything goes wrong on it."""
    context = browser.new_context(**{"viewport": WIDE, **options})
    context.set_default_timeout(TIMEOUT)
    page = context.new_page()
    watched = Watched(page, address)
    try:
        page.goto(address)
        yield page
        assert watched.problems == []
    finally:
        context.close()


def reading_problems(page: Page) -> list[str]:
    """Return what makes a page hard to read."""
    excess = overflow(page)
    return [*serious_problems(page), *low_contrast(page), *([f"{excess} pixels too wide"] if excess else [])]


def low_contrast(page: Page) -> list[str]:
    """Texts whose contrast with their background is below 4.5 : 1, the limit of WCAG AA."""
    texts: list[str] = page.evaluate(_CONTRAST)
    return texts


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    pixels: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return pixels


def serious_problems(page: Page) -> list[str]:
    """What axe finds serious or critical on a page, each with its first element."""
    page.evaluate(AXE.read_text("utf-8"))
    results = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {violation['help']}: {violation['nodes'][0]['html'][:200]}"
        for violation in results["violations"]
        if violation["impact"] in {"serious", "critical"}
    ]


def picture(page: Page, name: str, *, full_page: bool = False) -> None:
    """Write a screenshot for the documentation, if asked to."""
    if PICTURES:
        options: dict[str, Any] = {"format": "webp", "quality": 82, "captureBeyondViewport": full_page}
        if full_page:
            size = page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
            options["clip"] = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        data = page.context.new_cdp_session(page).send("Page.captureScreenshot", options)["data"]
        Path(PICTURES, f"page-{name}.webp").write_bytes(base64.b64decode(data))
