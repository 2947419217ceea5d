"""The pages of the cluster service in a real browser, with 5,000 nodes."""
# ruff: noqa: S101

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e import browser
from e2e.browser import Browser, Page, Watched

ROOT = Path(__file__).parents[1]
NODES = int(os.environ.get("ALIGNUP_PAGE_NODES", "5000"))
MAX_MEGABYTES = 100
MAX_ELEMENTS = 10_000  #: that the browser has at any time, however many nodes there are

MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {name: trainer}
spec:
  containers:
  - name: train
    image: registry.example/train
    resources:
      limits: {cpu: "12", memory: 8Gi}
"""

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=str(browser.missing()))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the pages."""
    words = [sys.executable, "-m", "e2e.served_cluster", str(NODES)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:  # noqa: S603
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.chromium() as running:
        yield running


@contextmanager
def opened(chromium: Browser, address: str, **options: object) -> Iterator[Page]:
    context = chromium.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options})
    page = context.new_page()
    page.set_default_timeout(120_000)
    watched = Watched(page, address)
    try:
        page.goto(address)
        page.wait_for_selector("#connection:text-is('live')")
        yield page
        assert watched.problems == []
    finally:
        context.close()


def test_thousands_of_nodes_fit_in_little_memory(chromium: Browser, address: str) -> None:
    with opened(chromium, address) as page:
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        seen = set()
        for share in (0.0, 0.3, 0.6, 0.9, 1.0):
            page.evaluate(f"window.scrollTo(0, document.body.scrollHeight * {share})")
            page.wait_for_selector(".chunk[data-near=yes] .card")
            page.wait_for_selector(".chunk[data-near=yes]:empty", state="detached")
            seen.add(page.locator(".card .name").first.inner_text())
            metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
            assert metrics["JSHeapUsedSize"] < MAX_MEGABYTES << 20
            assert page.locator("*").count() < MAX_ELEMENTS
        assert len(seen) > 1
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        sys.stdout.write(f"first paint after {paint:.0f} ms, {metrics['JSHeapUsedSize'] / 1e6:.1f} MB of JavaScript\n")


def test_nodes_are_sorted_filtered_and_opened(chromium: Browser, address: str) -> None:
    with opened(chromium, address) as page:
        browser.picture(page, "cluster")
        page.get_by_label("Sort by").select_option("pods")
        page.get_by_label("Label, key or key=value").fill("zone=b")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**/?*sort=pods*")
        assert "6 pods" in page.locator(".card").first.inner_text()
        page.locator(".card .name").first.click()
        page.wait_for_url("**/nodes/host-*")
        held = page.locator("#machine rect[data-holder=A]")
        page.locator("#pods tr[data-holder=A]").hover()
        assert page.locator("#machine rect.lit").count() == held.count() > 0


def test_a_pasted_manifest_is_answered(chromium: Browser, address: str) -> None:
    with opened(chromium, address) as page:
        page.get_by_role("link", name="Where would a pod go?").click()
        page.get_by_label("Manifest").fill(MANIFEST)
        page.get_by_role("button", name="Ask all nodes").click()
        page.wait_for_selector("table")
        assert page.input_value("#manifest").strip() == MANIFEST.strip()
        verdicts = page.locator("table tbody th").all_inner_texts()
        assert {"✓ admitted", "✗ rejected"} <= set(verdicts)
        assert "What would admit it on" in page.inner_text("table")
        browser.picture(page, "where", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400, 3840])
def test_pages_are_readable(chromium: Browser, address: str, scheme: str, width: int) -> None:
    with opened(chromium, address, color_scheme=scheme, viewport={"width": width, "height": 900}) as page:
        for place in ("", "pods?q=host-0001", "where", "nodes/host-0006"):
            page.goto(address + place)
            assert (browser.low_contrast(page), browser.overflow(page)) == ([], 0)
