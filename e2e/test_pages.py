"""The pages of an agent in a real browser."""
# ruff: noqa: S101

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from alignup.web.address import UnixAddress
from alignup.web.agent_client import AgentClient
from e2e import browser
from e2e.browser import Browser, Page, Watched
from tests.deadlines import wait_for
from tests.short_paths import short_directory

NODE = Path(__file__).parents[1] / "examples" / "node"
HOSTILE = "<img src=x onerror=alert(1)>'\"<script>alert(2)</script>"
PHONE = {"width": 360, "height": 740}

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=str(browser.missing()))


@dataclass(frozen=True)
class RunningAgent:
    client: AgentClient

    def link(self) -> str:
        return str(self.client.post("/v1/sign-in-links")["url"])

    def admit(self, name: str, **limits: str) -> None:
        container = {"name": "app", "resources": {"limits": limits}}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
        self.client.admit(manifest)


@contextmanager
def running_agent(machine: Path) -> Iterator[RunningAgent]:
    with short_directory() as place:
        log = place / "log"
        words = ["agent", "--root-dir", place / "a", "--machine", machine, "--config", NODE / "kubelet.yaml"]
        words += ["--on-misfit", "wait", "--web-listen", "127.0.0.1:0"]
        with log.open("wb") as stream:
            process = subprocess.Popen([sys.executable, "-m", "alignup", *map(str, words)], stderr=stream)  # noqa: S603
        try:
            wait_for(lambda: b'"listening"' in log.read_bytes())
            yield RunningAgent(AgentClient(UnixAddress(place / "a" / "agent.sock")))
        finally:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    """An agent with the pods of the example, one of them waiting."""
    with running_agent(NODE / "machine.yaml") as running:
        for pod in yaml.safe_load((NODE / "running.yaml").read_text())["items"]:
            running.client.admit(pod)
        template = yaml.safe_load((NODE / "trainer.yaml").read_text())["spec"]["template"]
        metadata = {"name": "trainer-0", "namespace": "ml"}
        running.client.admit({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        yield running


@contextmanager
def signed_in(chromium: Browser, agent: RunningAgent, **options: Any) -> Iterator[Page]:  # noqa: ANN401 - of playwright
    """The page of the node; fail if anything goes wrong on a page."""
    context = chromium.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options})
    page = context.new_page()
    link = agent.link()
    watched = Watched(page, link)
    try:
        page.goto(link)
        page.wait_for_url("**/")
        page.wait_for_selector("#connection:text-is('live')")
        yield page
        assert watched.problems == []
    finally:
        context.close()


def decision_of(agent: RunningAgent, outcome: str) -> int:
    return int(agent.client.get("/v1/decisions", outcome=outcome)["decisions"][0]["id"])


def test_a_pod_appears_when_it_is_admitted_and_goes_when_it_is_released(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent) as page:
        page.evaluate("window.sameDocument = true")
        agent.admit("newcomer", cpu="2", memory="1Gi")
        page.wait_for_selector("#pods a:text-is('default/newcomer')")
        assert page.locator("#machine rect[data-holder]").count() > 0
        uid = next(pod["uid"] for pod in agent.client.pods() if pod["name"] == "newcomer")
        agent.client.release(uid)
        page.wait_for_selector("#pods a:text-is('default/newcomer')", state="detached")

        assert page.evaluate("window.sameDocument") is True


def test_all_that_a_pod_holds_lights_up_and_a_click_shows_its_decision(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent) as page:
        row = page.locator("#pods tr", has_text="ml/finetune")
        key = row.get_attribute("data-holder")
        held = page.locator(f"#machine rect[data-holder={key}]")
        held.first.hover()
        lit = page.locator("#machine rect.lit")
        assert lit.count() == held.count() == 10  # 8 CPUs, a GPU and a network card
        assert "lit" in row.get_attribute("class")
        browser.picture(page, "node")
        held.first.click()
        page.wait_for_url("**/pods/*")

        assert page.inner_text("h1") == "Pod ml/finetune"


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


def test_a_rejected_pod_is_explained_and_tried_with_other_amounts(chromium: Browser, agent: RunningAgent) -> None:
    with signed_in(chromium, agent) as page:
        page.goto(page.url + f"decisions/{decision_of(agent, 'rejected')}")
        assert "is rejected: TopologyAffinityError" in page.inner_text(".verdict")
        assert page.locator("#remedies li").count() > 0
        page.get_by_label("cpu of container train").fill("2")
        page.get_by_role("button", name="Decide").click()
        page.wait_for_selector(".answer")

        assert "is admitted" in page.inner_text(".answer .verdict")
        browser.picture(page, "decision", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, {"width": 1400, "height": 1000}, {"width": 3840, "height": 2160}])
def test_pages_are_readable(chromium: Browser, agent: RunningAgent, scheme: str, size: dict[str, int]) -> None:
    with signed_in(chromium, agent, color_scheme=scheme, viewport=size) as page:
        start = page.url
        for place in ("", "decisions", f"decisions/{decision_of(agent, 'rejected')}"):
            page.goto(start + place)
            assert (browser.low_contrast(page), browser.overflow(page)) == ([], 0)
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
        assert dark is (scheme == "dark")
        if size == PHONE:
            page.goto(start)
            browser.picture(page, f"phone-{scheme}")


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


def test_a_browser_without_a_link_sees_nothing(chromium: Browser, agent: RunningAgent) -> None:
    page = chromium.new_page()
    page.goto(agent.link().partition("/sign-in")[0])

    assert page.inner_text("h1") == "Sign in"
    page.close()
