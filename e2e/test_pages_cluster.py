"""The pages of the cluster service in a real browser, with 5,000 nodes."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e import browser
from e2e.browser import LARGE, PHONE, WIDE, Browser, Page
from e2e.marks import needs
from e2e.page_servers import RunningCluster, running_cluster
from e2e.served_cluster import REJECTED, REPLICA_SET

NODES = int(os.environ.get("ALIGNUP_PAGE_NODES", "5000"))
MAX_MEGABYTES = 100
MAX_ELEMENTS = 10_000  #: that the browser has at any time, however many nodes there are
PAINT_MS, INTERACTION_MS = 700, 100  #: budgets, printed beside what was measured

MANIFEST = """\
apiVersion: batch/v1
kind: Job
metadata: {name: trainer}
spec:
  parallelism: 6
  completions: 6
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: train
        image: registry.example/train
        resources:
          limits: {cpu: "12", memory: 8Gi}
"""

pytestmark = needs(browser.missing())


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with running_cluster(NODES) as running:
        yield running


@contextmanager
def opened(chromium: Browser, cluster: RunningCluster, **options: object) -> Iterator[Page]:
    with browser.opened(chromium, cluster.address, **options) as page:
        page.wait_for_selector("#connection:text-is('live')")
        page.wait_for_selector("html[data-nodes]")
        yield page


def measure(page: Page, action: str) -> float:
    """The milliseconds until the page is drawn again after *action*."""
    script = """(action) => new Promise((done) => {
        const start = performance.now();
        new Function(action)();
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
    })"""
    return float(page.evaluate(script, action))


def tops(page: Page, *parts: str) -> list[float]:
    """Return where parts of the page begin, all at one moment."""
    script = "(parts) => parts.map((part) => document.querySelector(part).getBoundingClientRect().top)"
    return list(page.evaluate(script, parts))


def set_field(name: str, value: str) -> str:
    change = f"const field = document.getElementById('{name}'); field.value = '{value}';"
    return f"{change} field.dispatchEvent(new Event('input', {{bubbles: true}}));"


def test_thousands_of_nodes_are_shown_and_filtered_fast_in_little_memory(
    chromium: Browser, cluster: RunningCluster
) -> None:
    """The times depend on the machine, so they are printed beside their budgets; the sizes do not."""
    with opened(chromium, cluster) as page:
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        actions = {
            "filter": set_field("q", "host-12"),
            "show all": set_field("q", ""),
            "sort": set_field("sort", "stranded"),
            "sort by name": set_field("sort", "name"),
        }
        figures = {name: measure(page, action) for name, action in actions.items()}
        metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
        assert metrics["JSHeapUsedSize"] < MAX_MEGABYTES << 20
        assert page.locator("*").count() < MAX_ELEMENTS
        assert page.evaluate("document.documentElement.dataset.nodes") == str(NODES)
        lines = [f"first paint: {paint:.0f} ms (budget {PAINT_MS})"]
        lines += [f"{name}: {value:.0f} ms (budget {INTERACTION_MS})" for name, value in figures.items()]
        sys.stdout.write("\n".join([f"{NODES} nodes", *lines, ""]))


def test_nodes_are_filtered_as_the_reader_types_sorted_and_opened(chromium: Browser, cluster: RunningCluster) -> None:
    with opened(chromium, cluster) as page:
        assert page.get_by_role("button", name="Show", exact=True).count() == 0
        page.get_by_label("Name, or label").press_sequentially("zone=b host-00")
        page.wait_for_function(f"document.getElementById('matches').textContent.endsWith(' of {NODES}')")
        names = page.locator("#nodes tbody th").all_inner_texts()
        assert names == sorted(names)
        assert all(int(name[-4:]) % 3 == 1 for name in names)
        page.get_by_label("Sort by").select_option("pods")
        pods = [int(text or 0) for text in page.locator("#nodes tbody td:nth-child(3)").all_inner_texts()]
        assert pods == sorted(pods, reverse=True)
        shared = page.url
        assert "q=zone" in shared
        page.goto(shared)
        page.wait_for_selector("html[data-nodes]")
        assert (
            page.locator("#nodes tbody th").first.inner_text() == page.locator("#nodes tbody th a").first.inner_text()
        )
        page.locator("#nodes tbody a").first.click()
        page.wait_for_url("**/nodes/host-*")
        held = page.locator("#machine rect[data-holder=A]")
        page.locator("#pods tr[data-holder=A]").hover()
        assert page.locator("#machine rect.lit").count() == held.count() > 0


def test_the_map_names_the_node_under_the_pointer_and_opens_it(chromium: Browser, cluster: RunningCluster) -> None:
    with opened(chromium, cluster) as page:
        page.locator("#heat").hover(position={"x": 4, "y": 4})
        assert page.inner_text("#tip").startswith("host-0000 · single-numa-node")
        page.locator("#heat").click(position={"x": 4, "y": 4})
        page.wait_for_url("**/nodes/host-0000")


def test_a_change_is_shown_without_a_jump(chromium: Browser, cluster: RunningCluster) -> None:
    with opened(chromium, cluster) as page:
        row = page.locator("#nodes tbody tr").first
        link = row.locator("a")
        link.focus()
        before = tops(page, "#matches", "#more", "#capacity")
        pods = row.locator("td").nth(1)
        number = {"0": 6, "6": 0}[pods.inner_text()]
        cluster.send(f"state host-0000 {number}")
        page.wait_for_function(
            "(wanted) => document.querySelector('#nodes tbody td:nth-child(3)').textContent === wanted", arg=str(number)
        )

        # The browser scrolls by whole pixels when parts above are replaced.
        assert tops(page, "#matches", "#more", "#capacity") == pytest.approx(before, abs=1)
        assert page.evaluate("document.activeElement.textContent") == "host-0000"


def test_tiles_have_trends_and_nodes_without_a_report_say_what_to_do(
    chromium: Browser, cluster: RunningCluster
) -> None:
    with opened(chromium, cluster) as page:
        labels = page.locator("#tiles .label").all_inner_texts()
        assert {"Placed pods", "Rejected by kubelets", "Waiting pods", "Stranded GPUs", "Predictions right"} <= set(
            labels
        )
        assert "host-0096" in page.inner_text("#no-report")
        assert "Run alignup observe there" in page.inner_text("#no-report")
        fits = page.locator("#capacity tbody tr").all_inner_texts()
        assert [text.split("\t")[0] for text in fits] == ["cpu", "memory", "example.com/gpu"]


def test_failed_and_waiting_pods_stand_at_the_top_and_lead_to_what_would_admit_them(
    chromium: Browser, cluster: RunningCluster
) -> None:
    with opened(chromium, cluster) as page:
        rows = page.locator("#attention tbody tr")
        count = rows.count()
        assert page.locator("#attention").bounding_box()["y"] < page.locator("#tiles").bounding_box()["y"]
        assert "Failed: TopologyAffinityError" in rows.first.inner_text()
        assert f"and {REJECTED - 1} more of ReplicaSet {REPLICA_SET}" in rows.first.inner_text()
        cluster.send("wait trainer")
        page.wait_for_selector(f"#attention tbody tr >> nth={count}")
        assert "not enough cpu on one NUMA node" in rows.last.inner_text()
        rows.first.get_by_role("link", name=f"and {REJECTED - 1} more").click()
        assert page.locator("tbody tr").count() == REJECTED
        page.locator("tbody a").first.click()
        assert page.inner_text(".lead").startswith("✗ Failed: TopologyAffinityError")
        assert "would be admitted by" in page.inner_text("main")
        assert "What would admit it on" in page.inner_text("main")


def test_a_pasted_workload_is_answered_with_a_picture_and_a_link(chromium: Browser, cluster: RunningCluster) -> None:
    with opened(chromium, cluster) as page:
        page.get_by_role("link", name="Where would a pod go?").click()
        assert "kind: Pod" in page.input_value("#manifest")
        page.get_by_label("Manifest").fill(MANIFEST)
        page.get_by_role("button", name="Ask all nodes").click()
        page.wait_for_selector(".machine")
        assert page.input_value("#manifest").strip() == MANIFEST.strip()
        assert "all 6 pods fit together" in page.inner_text(".lead")
        best = page.locator("table").first.locator("tbody tr").all_inner_texts()
        assert len(best) == 3
        assert "every hint preferred" in best[0]
        verdicts = page.locator("table tbody th").all_inner_texts()
        assert {"✓ admitted", "✗ rejected"} <= set(verdicts)
        assert "What would admit it on" in page.inner_text("main")
        shared = page.get_by_role("link", name="Link to this question").get_attribute("href")
        page.goto(cluster.address.rstrip("/") + shared)
        assert "all 6 pods fit together" in page.inner_text(".lead")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE, LARGE], ids=["phone", "desktop", "4K"])
def test_pages_are_readable(chromium: Browser, cluster: RunningCluster, scheme: str, size: dict[str, int]) -> None:
    with opened(chromium, cluster, color_scheme=scheme, viewport=size) as page:
        example = page.get_by_role("link", name="Example: a pod")
        pods = ("pods", "pods?q=host-0001", f"pods/default/{REPLICA_SET}-00")
        for place in ("", *pods, "where", "nodes/host-0006", "nodes/host-0096", "answer"):
            if place == "answer":
                page.goto(f"{cluster.address}where")
                example.click()
                page.wait_for_selector(".machine")
            else:
                page.goto(cluster.address + place)
            assert (place, browser.reading_problems(page)) == (place, [])


def test_a_cluster_without_nodes_says_so(chromium: Browser) -> None:
    with running_cluster(0) as cluster:
        page = chromium.new_page()
        page.goto(cluster.address)
        assert "The cluster has no nodes yet." in page.inner_text("main")
        assert browser.serious_problems(page) == []
        page.close()
