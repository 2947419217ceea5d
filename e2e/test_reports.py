"""The HTML reports in a real browser, as files and without a network."""

import json
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e import browser
from e2e.browser import PHONE, WIDE, Browser, Page
from e2e.marks import needs
from e2e.page_servers import write_reports

KINDS = ("comparison", "cluster", "sweep")
FIRST = "figure[data-chart] >> nth=0"

pytestmark = needs(browser.missing())


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_reports(tmp_path_factory.mktemp("reports"))


@contextmanager
def opened(chromium: Browser, report: Path, **options: Any) -> Iterator[Page]:  # noqa: ANN401 - of playwright
    """Yield a report that is opened without a network."""
    with browser.opened(chromium, report.as_uri(), offline=True, **options) as page:
        yield page


def data_of(page: Page, figure: str = FIRST) -> dict[str, Any]:
    return dict(json.loads(page.text_content(f"{figure} >> script")))


def hover(page: Page, share: float, figure: str = FIRST) -> None:
    """Move the pointer to *share* of the width of a chart."""
    page.locator(f"{figure} >> .u-over").scroll_into_view_if_needed()
    box = page.locator(f"{figure} >> .u-over").bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def ink(page: Page, figure: str = FIRST) -> str:
    """The picture of a chart."""
    return str(page.evaluate("(figure) => figure.querySelector('canvas').toDataURL()", page.query_selector(figure)))


def shown_values(page: Page, figure: str = FIRST) -> list[str]:
    return list(page.locator(f"{figure} >> .value").all_inner_texts())


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_is_one_file_with_its_takeaway_first(chromium: Browser, reports: dict[str, Path], kind: str) -> None:
    with opened(chromium, reports[kind]) as page:
        figures = page.locator("figure[data-chart]").count()
        assert page.locator("canvas").count() == figures
        assert (figures > 0) is (kind != "sweep")
        top = page.locator("#takeaway").bounding_box()
        assert top["y"] < 200
        links = page.locator(".contents a")
        assert links.count() == page.locator("section").count() > 2
        links.last.click()
        assert page.locator("section").last.bounding_box()["y"] < WIDE["height"]


def test_hovering_shows_the_values_at_that_time(chromium: Browser, reports: dict[str, Path]) -> None:
    with opened(chromium, reports["cluster"]) as page:
        assert all(text.startswith("max ") for text in shown_values(page))
        times, *columns = data_of(page)["columns"]

        hover(page, 0.5)

        place = bisect_right(times, times[0] + (times[-1] - times[0]) / 2) - 1
        nearby = [{f"{column[at]:,}" for at in (place - 1, place, place + 1)} for column in columns]
        for text, values in zip(shown_values(page), nearby, strict=True):
            assert text in values
        assert page.inner_text(f"{FIRST} >> .when")
        assert page.inner_text("figure[data-chart] >> nth=1 >> .when") == page.inner_text(f"{FIRST} >> .when")


def test_dragging_zooms_all_charts_and_a_button_resets_them(chromium: Browser, reports: dict[str, Path]) -> None:
    with opened(chromium, reports["cluster"]) as page:
        whole = ink(page)
        second = ink(page, "figure[data-chart] >> nth=1")

        hover(page, 0.25)
        page.mouse.down()
        hover(page, 0.4)
        hover(page, 0.5)
        page.mouse.up()
        page.wait_for_selector(".reset:visible")

        assert page.locator(".reset:visible").count() == page.locator("figure[data-chart]").count()
        assert ink(page) != whole
        assert ink(page, "figure[data-chart] >> nth=1") != second
        page.locator(".reset:visible").first.click()
        page.mouse.move(0, 0)
        page.wait_for_selector(".reset:visible", state="detached")
        page.wait_for_function("(whole) => document.querySelector('canvas').toDataURL() === whole", arg=whole)


def test_the_legend_toggles_lines(chromium: Browser, reports: dict[str, Path]) -> None:
    with opened(chromium, reports["cluster"]) as page:
        whole = ink(page)
        key = page.locator(f"{FIRST} >> .keys button[aria-pressed]").last

        key.focus()
        page.keyboard.press("Enter")

        assert key.get_attribute("aria-pressed") == "false"
        page.wait_for_function("(whole) => document.querySelector('canvas').toDataURL() !== whole", arg=whole)
        page.keyboard.press("Space")
        assert key.get_attribute("aria-pressed") == "true"
        page.wait_for_function("(whole) => document.querySelector('canvas').toDataURL() === whole", arg=whole)


def test_charts_are_read_and_zoomed_with_the_keyboard(chromium: Browser, reports: dict[str, Path]) -> None:
    with opened(chromium, reports["comparison"]) as page:
        page.locator(f"{FIRST} >> .plot").focus()
        page.keyboard.press("PageDown")
        first = page.inner_text(f"{FIRST} >> .when")
        page.keyboard.press("ArrowRight")
        assert page.inner_text(f"{FIRST} >> .when") not in {"", first}

        page.keyboard.press("+")
        assert page.locator(".reset:visible").count() > 0
        page.keyboard.press("Escape")
        assert page.locator(".reset:visible").count() == 0


@pytest.mark.parametrize(("kind", "column"), [("sweep", "Rejections"), ("comparison", "One NUMA node")])
def test_tables_are_sorted_by_a_column(chromium: Browser, reports: dict[str, Path], kind: str, column: str) -> None:
    with opened(chromium, reports[kind]) as page:
        head = page.locator(".sortable >> nth=0").locator("th", has_text=column).first
        values = f".sortable >> nth=0 >> td[data-label='{column}']"

        head.locator("button").focus()
        page.keyboard.press("Enter")
        descending = [float(cell.get_attribute("data-value")) for cell in page.locator(values).all()]
        assert (head.get_attribute("aria-sort"), descending) == ("descending", sorted(descending, reverse=True))
        page.keyboard.press("Enter")
        ascending = [float(cell.get_attribute("data-value")) for cell in page.locator(values).all()]
        assert (head.get_attribute("aria-sort"), ascending) == ("ascending", sorted(ascending))
        assert len(set(ascending)) > 1


def test_readers_without_scripts_have_the_tables(chromium: Browser, reports: dict[str, Path]) -> None:
    with opened(chromium, reports["cluster"], java_script_enabled=False) as page:
        figures = page.locator("figure[data-chart]").count()
        assert page.locator("figure table:visible").count() == figures > 3
        assert page.locator("canvas").count() == 0


def test_tables_of_charts_open_with_the_keyboard(chromium: Browser, reports: dict[str, Path]) -> None:
    with opened(chromium, reports["cluster"]) as page:
        assert page.locator("figure table:visible").count() == 0
        page.locator(f"{FIRST} >> summary").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(f"{FIRST} >> table:visible")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.getAttribute('role')") == "region"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
@pytest.mark.parametrize("kind", KINDS)
def test_reports_are_readable(
    chromium: Browser, reports: dict[str, Path], kind: str, size: dict[str, int], scheme: str
) -> None:
    with opened(chromium, reports[kind], viewport=size, color_scheme=scheme) as page:
        page.locator("details").evaluate_all("(all) => all.forEach((details) => { details.open = true; })")
        assert browser.reading_problems(page) == []
        widths = page.locator("figure .plot").evaluate_all(
            "(plots) => plots.map((plot) => [plot.clientWidth, plot.querySelector('.uplot').clientWidth])"
        )
        assert all(plot == drawn for plot, drawn in widths)


def test_a_report_prints_on_light_paper(chromium: Browser, reports: dict[str, Path]) -> None:
    with opened(chromium, reports["cluster"], color_scheme="dark") as page:
        page.evaluate(
            """() => {
              const paper = () => getComputedStyle(document.documentElement).getPropertyValue("--paper");
              const plots = [...document.querySelectorAll(".uplot")];
              const widest = () => Math.max(...plots.map((plot) => plot.clientWidth));
              addEventListener("beforeprint", () => queueMicrotask(() => { window.printed = [paper(), widest()]; }));
              window.paper = paper;
            }"""
        )

        pdf = page.pdf(format="A4")

        assert pdf.startswith(b"%PDF")
        paper, width = page.evaluate("window.printed")
        assert (paper, page.evaluate("paper()")) == ("#ffffff", "#0d1117")
        assert width <= 700
