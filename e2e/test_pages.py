"""The pages of an agent in a real browser."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from e2e import browser
from e2e.broken_line import broken_line
from e2e.browser import LARGE, PHONE, WIDE, Browser, Page
from e2e.marks import needs
from e2e.page_servers import NODE, RunningAgent, running_agent

HOSTILE = "<img src=x onerror=alert(1)>'\"<script>alert(2)</script>"

pytestmark = needs(browser.missing())


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    """An agent with the pods of the example, one of them waiting."""
    with running_agent() as running:
        running.admit_examples()
        yield running


@contextmanager
def signed_in(chromium: Browser, agent: RunningAgent, **options: Any) -> Iterator[Page]:  # noqa: ANN401 - of playwright
    """Yield the page of the node."""
    with browser.opened(chromium, agent.link(), **options) as page:
        page.wait_for_url("**/")
        page.wait_for_selector("#connection:text-is('live')")
        yield page


def test_a_page_begins_with_its_answer_and_says_which_host_it_is(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent) as page:
        assert re.fullmatch(r"Node · \S+ · Alignup", page.title())
        tiles = dict(
            zip(
                page.locator(".tile .label").all_inner_texts(),
                page.locator(".tile .value").all_inner_texts(),
                strict=True,
            )
        )
        assert (tiles["Pods"], tiles["Waiting pods"], tiles["Free CPUs"]) == ("5", "1", "8 of 32")
        places = [page.locator(part).bounding_box()["y"] for part in ("#tiles", "#machine", "#pods", "#numa")]
        assert places == sorted(places)
        machine = page.locator("#machine .machine").bounding_box()["width"]
        assert sum(box.bounding_box()["width"] for box in page.locator("#machine svg").all()) > 0.9 * machine


def test_times_are_relative_and_exact_on_hover(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent, timezone_id="Asia/Tokyo", locale="en-US") as page:
        time = page.locator("#pods time").first
        assert re.search(r"now|ago", time.inner_text())
        assert re.search(r"\d{4}, \d+:\d\d:\d\d [AP]M GMT\+9", time.get_attribute("title"))


def test_a_pod_appears_when_it_is_admitted_and_goes_when_it_is_released(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent) as page:
        page.evaluate("window.sameDocument = true")
        agent.admit("newcomer", cpu="2", memory="1Gi")
        page.wait_for_selector("#pods a:text-is('default/newcomer')")
        assert page.locator("#machine rect[data-holder]").count() > 0
        agent.client.release(agent.uid("newcomer"))
        page.wait_for_selector("#pods a:text-is('default/newcomer')", state="detached")

        assert page.evaluate("window.sameDocument") is True


def test_a_lost_connection_is_shown_and_recovers(chromium: Browser, agent: RunningAgent) -> None:
    link = urlsplit(agent.link())
    assert link.port is not None
    with broken_line(link.port) as line:
        through = link._replace(netloc=f"127.0.0.1:{line.port}").geturl()
        context = chromium.new_context()
        page = context.new_page()
        page.goto(through)
        page.wait_for_selector("#connection:text-is('live')")
        line.cut()
        page.wait_for_selector("#connection.lost:has-text('connection lost, trying again')")
        agent.admit("unseen", cpu="2", memory="1Gi")
        line.mend()
        page.wait_for_selector("#connection:not(.lost):text-is('live')")
        page.wait_for_selector("#pods a:text-is('default/unseen')")
        context.close()
    agent.client.release(agent.uid("unseen"))


def test_all_that_a_pod_holds_lights_up_and_a_click_shows_its_decision(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent) as page:
        row = page.locator("#pods tr", has_text="ml/finetune")
        key = row.get_attribute("data-holder")
        held = page.locator(f"#machine rect[data-holder={key}]")
        held.first.hover()
        lit = page.locator("#machine rect.lit")
        assert lit.count() == held.count() == 11  # 8 CPUs, a GPU, a network card, and memory
        assert "lit" in row.get_attribute("class")
        held.first.click()
        page.wait_for_url("**/pods/*")

        assert page.inner_text("h1").startswith("Pod ml/finetune")


def test_what_is_reserved_and_free_differs_in_more_than_color(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent) as page:
        bars = page.locator("#machine rect.reserved:not([data-cpu]) + path.hatch")
        assert bars.count() == 2  # the memory of both NUMA nodes
        assert page.locator("#machine rect[data-cpu='0'] ~ text").nth(1).text_content() == "r"


def test_everything_can_be_reached_by_keyboard(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent) as page:
        seen = []
        for _ in range(60):
            page.keyboard.press("Tab")
            active = page.evaluate("document.activeElement.getAttribute('href') ?? ''")
            seen.append(active)
            if active.startswith("/pods/"):
                break
        assert seen[0] == "#content"
        assert page.locator("#machine rect.lit").count() > 0
        page.keyboard.press("Escape")
        assert page.locator("#machine rect.lit").count() == 0
        page.keyboard.press("Enter")
        page.wait_for_url("**/pods/*")
        page.locator("#policy").focus()
        page.keyboard.press("ArrowUp")  # restricted
        while not page.evaluate("document.activeElement.matches('button')"):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector(".answer")

        assert "restricted" in page.inner_text(".answer h3")


def test_a_waiting_pod_is_explained_and_tried_with_other_amounts(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent) as page:
        page.goto(page.url + f"decisions/{agent.decision('waiting')}")
        assert page.inner_text(".lead") == "… waiting Pod ml/trainer-0 waits for room: TopologyAffinityError"
        assert "only with other nodes: too little here alone" in page.inner_text("#step-0")
        assert page.locator("#remedies li").count() > 0
        page.get_by_label("cpu of container train").fill("2")
        page.get_by_role("button", name="Decide").click()
        page.wait_for_selector(".answer")

        assert "is admitted" in page.inner_text(".answer .lead")


def test_a_decision_links_what_happened_afterwards(chromium: Browser) -> None:
    with running_agent() as agent:
        agent.admit_examples()
        waited = agent.decision("waiting")
        agent.client.release(agent.uid("finetune"))
        with signed_in(chromium, agent) as page:
            page.wait_for_selector("#pods a:text-is('ml/trainer-0')")
            page.goto(page.url + f"decisions/{waited}")
            assert "Since then admitted: decision" in page.inner_text(".banner.info").replace("\n", " ")
            assert page.locator("#remedies").count() == 0
            page.click(".banner.info a")
            assert "is admitted" in page.inner_text(".lead")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE, LARGE], ids=["phone", "desktop", "4K"])
def test_pages_are_readable(chromium: Browser, agent: RunningAgent, scheme: str, size: dict[str, int]) -> None:
    with signed_in(chromium, agent, color_scheme=scheme, viewport=size) as page:
        start = page.url
        pod = f"pods/{agent.uid('finetune')}"
        for place in ("", "decisions", f"decisions/{agent.decision('waiting')}", pod, "sign-in"):
            page.goto(start + place)
            page.wait_for_selector("h1")
            assert (place, browser.reading_problems(page)) == (place, [])
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 27, 35)"
        assert dark is (scheme == "dark")


def test_on_a_phone_no_table_is_cut_off(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent, viewport=PHONE) as page:
        cut = "[...document.querySelectorAll('.table')].filter((table) => table.scrollWidth > table.clientWidth).length"
        assert page.evaluate(cut) == 0
        assert page.locator(".table:not([tabindex='0'])").count() == 0


def test_hostile_names_stay_text(chromium: Browser, tmp_path: Path) -> None:
    machine = yaml.safe_load((NODE / "machine.yaml").read_text())
    for device in machine["devices"]:
        device["id"] += HOSTILE
    file = tmp_path / "machine.yaml"
    file.write_text(json.dumps(machine))
    with running_agent(file) as agent:
        agent.admit("victim", cpu="2", memory="1Gi", **{"example.com/gpu": "1"})
        with signed_in(chromium, agent) as page:
            assert HOSTILE in page.inner_text("#pods")
            page.click("#pods a")
            page.wait_for_url("**/pods/*")
            assert HOSTILE in page.inner_text("#allocation")
            assert page.locator("img, main script").count() == 0


def test_a_browser_without_a_link_sees_how_to_sign_in(chromium: Browser, agent: RunningAgent) -> None:
    page = chromium.new_page()
    page.goto(agent.link().partition("/sign-in")[0])

    assert page.inner_text("h1").startswith("Sign in")
    assert "alignup web" in page.inner_text("main")
    assert page.locator("nav").count() == 0
    page.close()


def test_an_unknown_page_leads_on(chromium: Browser, agent: RunningAgent) -> None:
    context = chromium.new_context(viewport=PHONE)
    page = context.new_page()
    page.goto(agent.link())
    page.wait_for_url("**/")
    page.goto(page.url + "nope")
    assert "There is no page /nope here." in page.inner_text("[role=alert]")
    assert browser.serious_problems(page) == []
    page.click("main a >> text=Decisions")
    assert page.inner_text("h1").startswith("Decisions")
    context.close()


def test_a_node_without_pods_says_what_to_do_next(chromium: Browser) -> None:
    with running_agent() as agent, signed_in(chromium, agent) as page:
        assert "alignup admit -f pod.yaml" in page.inner_text("#pods .blank")
        assert "alignup admit -f pod.yaml" in page.inner_text("#decisions .blank")
