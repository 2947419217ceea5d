"""Screenshots of every page and report for the documentation: ``python -m e2e.screenshots DIRECTORY``."""

import os
import sys
import tempfile
import time
from pathlib import Path

from e2e import browser
from e2e.browser import PHONE, WIDE, Browser
from e2e.page_servers import running_agent, running_cluster, write_reports
from e2e.served_cluster import REPLICA_SET

NODES = 1500
STEPS = 40  #: in which something happens, for the trends


def main(directory: str) -> None:
    os.environ["ALIGNUP_TREND_SECONDS"] = "0.25"
    browser.PICTURES = directory
    if problem := browser.missing():
        sys.exit(problem)
    with browser.chromium() as chromium:
        take_agent(chromium)
        take_cluster(chromium)
        take_reports(chromium)


def take_agent(chromium: Browser) -> None:
    with running_agent() as agent:
        agent.admit_examples()
        for name, size, scheme in (("", WIDE, "light"), ("phone-", PHONE, "dark")):
            context = chromium.new_context(viewport=size, color_scheme=scheme)
            page = context.new_page()
            start = agent.link().partition("sign-in")[0]
            page.goto(f"{start}sign-in")
            browser.picture(page, f"{name}sign-in")
            page.goto(agent.link())
            page.wait_for_selector("#connection:text-is('live')")
            if size is WIDE:  # where the machine stays in sight
                page.hover("#pods tr >> nth=1")
            browser.picture(page, f"{name}node")
            page.goto(f"{start}decisions/{agent.decision('waiting')}")
            browser.picture(page, f"{name}decision")
            context.close()


def take_cluster(chromium: Browser) -> None:
    with running_cluster(NODES) as cluster:
        for step in range(STEPS):
            cluster.send(f"state host-{step:04} {step % 7}")
            cluster.send(f"predict as_predicted {5 + step % 11}")
            if step % 9 == 4:
                cluster.send(f"wait trainer-{step}")
            time.sleep(0.25)
        for name, size, scheme in (("", WIDE, "light"), ("phone-", PHONE, "light"), ("dark-", WIDE, "dark")):
            context = chromium.new_context(viewport=size, color_scheme=scheme)
            page = context.new_page()
            page.goto(cluster.address)
            page.wait_for_selector("html[data-nodes]")
            browser.picture(page, f"{name}cluster")
            if name == "":
                page.goto(f"{cluster.address}pods/default/{REPLICA_SET}-00")
                browser.picture(page, "pod")
            if name != "dark-":
                page.goto(f"{cluster.address}where")
                page.get_by_role("link", name="eight pods").click()
                page.wait_for_selector(".machine")
                browser.picture(page, f"{name}where")
            context.close()


def take_reports(chromium: Browser) -> None:
    with tempfile.TemporaryDirectory() as directory:
        page = chromium.new_page(viewport=WIDE, color_scheme="light")
        for kind, file in write_reports(Path(directory)).items():
            page.goto(file.as_uri())
            browser.picture(page, f"report-{kind}")
        page.close()


if __name__ == "__main__":
    main(sys.argv[1])
