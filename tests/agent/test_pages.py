"""The pages of an agent over HTTP: what they show, to whom, and that names of strangers stay text."""

import json
import re
from dataclasses import replace

import httpx2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from alignup.agent.state import EventKind
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.settings import Policy
from alignup.schedule.pages import CHANGED
from alignup.web.authentication import LINK_SECONDS, SESSION_SECONDS, AccessRules, Sessions
from alignup.web.event_streams import MISSED
from alignup.web.pages import static_file
from tests.agent.fake_backend import FakeBackend, app_of, as_json, client_of, host, manifest, read
from tests.html_reader import HtmlReader

pytestmark = pytest.mark.anyio

PAGES = ["/", "/decisions", "/decisions/1", "/pods/default-small", "/pods/default-large"]
TOKEN = b"secret-token"
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;"


async def busy_agent() -> FakeBackend:
    """An agent with an admitted and a waiting pod."""
    agent = FakeBackend(wait_enabled=True)
    await agent.admit_document(manifest("small", cpu="2", memory="1Gi", gpu="1"))
    await agent.admit_document(manifest("large", cpu="12", memory="1Gi"))
    return agent


def rules(**options) -> AccessRules:
    access = AccessRules(token=TOKEN, **options)
    access.sessions.base_url = "http://agent"
    return access


def text_of(response) -> str:
    return re.sub(r"\s+", " ", HtmlReader(response.text).text)


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_forbids_scripts_and_styles_of_others(path):
    async with client_of(await busy_agent()) as client:
        response = await client.get(path)

        assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
        directives = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
        assert directives["default-src"] == "'none'"
        assert {directives[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
        assert (directives["base-uri"], directives["frame-ancestors"]) == ("'none'", "'none'")
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["referrer-policy"] == "same-origin"
        tags = HtmlReader(response.text).tags
        assert not [tag for tag in tags if tag[0] in {"style", "iframe", "object", "embed"}]
        assert not [name for _, names in tags for name in names if name.startswith("on") or name == "style"]
        assert "<script " in response.text
        assert not re.search(r"<script[^>]*>[^<]", response.text)
        assert not re.search(r"(?:src|href|action)=\"(?:https?:|//)", response.text)


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_has_names_for_screen_readers(path):
    async with client_of(await busy_agent()) as client:
        text = (await client.get(path)).text

        assert '<html lang="en">' in text
        assert len(re.findall("<h1>", text)) == 1
        assert text.count("<table") == text.count("<caption>")
        assert all('role="img"' in svg and "aria-label=" in svg for svg in re.findall(r"<svg[^>]*>", text))
        labels = set(re.findall(r'<label for="([^"]+)"', text))
        assert set(re.findall(r'<(?:input|select|textarea) id="([^"]+)"', text)) == labels
        ids = re.findall(r' id="([^"]+)"', text)
        assert len(ids) == len(set(ids))


async def test_the_page_of_a_node_shows_who_holds_what_and_who_waits():
    agent = await busy_agent()
    agent.not_ready = ("the disk is full",)
    async with client_of(agent) as client:
        response = await client.get("/")
        text = text_of(response)

        assert 'data-events="/v1/events"' in response.text
        assert re.search(r'<rect [^>]*data-cpu="2"[^>]*data-holder="A"', response.text)
        assert re.search(r'<tr data-holder="A">.*?<a href="/pods/default-small">default/small</a>', response.text)
        assert "The agent cannot decide on pods: the disk is full" in text
        assert "web.yaml cannot be used" in text
        assert "12 CPUs: too large for any single NUMA node" in text
        assert re.search(r'<td[^>]*>1</td><th scope="row"><a href="/pods/default-large">', response.text)
        assert "example.com/gpu✓ connected✓ all 4 healthy13" in text
        assert "Waiting pods 1the first: default/large" in text.replace("s1", "s 1")
        assert "Free CPUs12 of 16largest aligned request: 8" in text
        assert "… waiting" in text
        assert '<a href="/decisions/2">Decision 2</a>' in response.text


async def test_a_decision_shows_hints_merge_and_what_would_admit_the_pod():
    agent = FakeBackend()
    await agent.admit_document(manifest("large", cpu="12", memory="1Gi"))
    async with client_of(agent) as client:
        text = text_of(await client.get("/decisions/1"))

        assert "Pod default/large is rejected: TopologyAffinityError" in text
        assert "Resources cannot be allocated with Topology locality" in text
        assert "What does not fit12 CPUs: too large" in text
        cells = "6 free6 of 12only with other nodes8 free8 of 12only with other nodes"
        assert f"cpu12{cells}NUMA nodes 0-1 (preferred)" in text
        assert "preferred: fits here, on as few NUMA nodes as this machine allows" in text
        assert "Runners-upnone" in text
        assert "✗ does not accept the winner" in text
        assert "request 8 CPUs instead of 12 for container app" in text
        assert (await client.get("/decisions/99")).status_code == 404


async def test_a_decision_says_what_happened_afterwards():
    agent = FakeBackend(wait_enabled=True)
    await agent.admit_document(manifest("first", cpu="8", memory="1Gi"))
    await agent.admit_document(manifest("second", cpu="8", memory="1Gi"))
    async with client_of(agent) as client:
        waiting = text_of(await client.get("/decisions/2"))
        agent.remove("default-first")
        free = text_of(await client.get("/decisions/2"))
        agent.remove("default-second")
        await agent.admit_document(manifest("second", cpu="8", memory="1Gi"))
        admitted = await client.get("/decisions/2")

    assert "… waiting Pod default/second waits for room: TopologyAffinityError" in waiting
    assert "What would admit it now" in waiting
    assert "the pod fits without any change" in free
    assert "What would admit it now" not in free
    assert "Since then admitted: decision 3" in text_of(admitted)
    assert '<a href="/decisions/3">' in admitted.text
    assert "What would admit it now" not in text_of(admitted)


async def test_an_unknown_page_is_a_page_for_browsers_and_a_document_for_programs():
    async with client_of(FakeBackend()) as client:
        page = await client.get("/nope", headers={"accept": "text/html,*/*"})
        document = await client.get("/nope")

    assert (page.status_code, document.status_code) == (404, 404)
    assert "There is no page /nope here. Go on to Node or Decisions." in text_of(page).replace("here.Go", "here. Go")
    assert "see /openapi.json" in document.json()["detail"]


async def test_the_what_if_form_decides_like_the_host_and_changes_nothing():
    agent = FakeBackend()
    result = await agent.admit_document(manifest("large", cpu="12", memory="1Gi"))
    before, events = agent.host.ledger, len(agent.stored)
    async with client_of(agent) as client:
        laxer = await client.get("/decisions/1", params={"policy": "best-effort", "amount-0": "12"})
        smaller = await client.get("/decisions/1", params={"policy": "single-numa-node", "amount-0": "4"})
        wrong = await client.get("/decisions/1", params={"policy": "strict", "amount-0": "many"})

    assert "set topologyManagerPolicy to best-effort" in text_of(laxer)
    assert "Pod default/large is admitted" in text_of(laxer)
    pod = read(as_json(manifest("large", cpu="4", memory="1Gi")))
    cpus = agent.host.decide(replace(pod, uid=result.decision.uid)).placements[0].as_text()["cpu"]["cpu"]
    assert f"CPUs {cpus}" in text_of(smaller)
    assert "There is no policy strict." in text_of(wrong)
    assert "cpu of container app: " in text_of(wrong)
    assert (agent.host.ledger, len(agent.stored)) == (before, events)


async def test_an_admitted_pod_can_be_tried_in_its_own_room():
    agent = FakeBackend()
    await agent.admit_document(manifest("half", cpu="8", memory="1Gi"))
    await agent.admit_document(manifest("other", cpu="6", memory="1Gi"))
    async with client_of(agent) as client:
        text = text_of(await client.get("/pods/default-half", params={"policy": "restricted", "scope": "pod"}))

        assert text.count("Pod default/half is admitted") == 2


@given(text=st.text(min_size=1, max_size=40))
@example(text=HOSTILE)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_names_of_strangers_stay_text(anyio_backend, text):
    """A page has the same tags, whatever pods, containers, devices and resources are called."""
    assert await tags_of_pages(text) == await tags_of_pages("x")


async def tags_of_pages(name: str) -> list[list[tuple[str, tuple[str, ...]]]]:
    made = host(Policy.RESTRICTED)
    devices = tuple(Device(f"{name}/r", f"{name}{number}", nodes=1) for number in range(2))
    agent = FakeBackend(Host(replace(made.machine, devices=devices), made.settings), wait_enabled=True)
    agent.not_ready = (name,)
    for number, cpus in enumerate(("2", "99")):
        pod = read(as_json(manifest(f"p{number}", cpu=cpus, memory="1Gi")))
        containers = tuple(replace(container, name=name) for container in pod.containers)
        await agent.admit(replace(pod, name=name, namespace=name, containers=containers, annotations={name: name}))
    tags = []
    async with client_of(agent, search_seconds=0) as client:
        for path in ("/", "/decisions", "/decisions/1", "/decisions/2", "/pods/default-p0", "/pods/default-p1"):
            response = await client.get(path)
            assert response.status_code == 200
            tags.append(HtmlReader(response.text).tags)
    return tags


async def test_a_browser_needs_a_link_that_is_valid_once():
    agent, access = await busy_agent(), rules()
    async with client_of(agent, access=access) as client:
        stranger = await client.get("/")
        link = (await client.post("/v1/sign-in-links", headers={"authorization": "Bearer secret-token"})).json()
        await client.head(link["url"])
        signed_in = await client.get(link["url"])

        assert (stranger.status_code, "default/small" in stranger.text) == (401, False)
        assert "alignup web" in stranger.text
        cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "default/small" in (await client.get("/")).text
        assert (await client.get("/v1/pods")).status_code == 200
        assert (await client.get("/static/pages.css")).status_code == 200
    async with client_of(agent, access=access) as other:
        again = await other.get(link["url"])

        assert (again.status_code, "set-cookie" in again.headers) == (401, False)
        assert "used before" in again.text


async def test_a_session_cannot_change_anything():
    """What other sites could send in the name of a user: pods are admitted and released with the token only."""
    access = rules()
    async with client_of(await busy_agent(), access=access) as client:
        await client.get(access.sessions.create_link())
        sent = [
            await client.post("/v1/pods", json=manifest("other", cpu="1", memory="1Gi")),
            await client.delete("/v1/pods/default-small"),
            await client.post("/v1/sign-in-links"),
        ]

        assert [response.status_code for response in sent] == [401, 401, 401]


async def test_the_token_signs_in_too_but_not_from_other_sites():
    access = rules()
    form = {"token": TOKEN.decode()}
    async with client_of(await busy_agent(), access=access) as client:
        foreign = await client.post("/sign-in", data=form, headers={"origin": "http://evil.example"})
        cross = await client.post("/sign-in", data=form, headers={"sec-fetch-site": "cross-site"})
        wrong = await client.post("/sign-in", data={"token": "x"}, headers={"origin": "http://agent"})
        right = await client.post("/sign-in", data=form, headers={"origin": "http://agent"})

        assert [response.status_code for response in (foreign, cross, wrong, right)] == [403, 403, 401, 200]
        assert [("set-cookie" in response.headers) for response in (foreign, cross, wrong, right)] == [
            False,
            False,
            False,
            True,
        ]


@pytest.mark.parametrize("path", ["/", "/decisions/1?policy=none"])
async def test_other_sites_cannot_load_pages_as_parts_of_theirs(path):
    async with client_of(await busy_agent()) as client:
        embedded = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
        followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}

        assert (await client.get(path, headers=embedded)).status_code == 403
        assert (await client.get(path, headers=followed)).status_code == 200


async def test_without_a_web_address_there_are_no_links():
    async with client_of(FakeBackend()) as client:
        response = await client.post("/v1/sign-in-links")

        assert (response.status_code, "no web address" in response.json()["detail"]) == (404, True)


async def test_a_pod_is_one_file_for_a_ticket():
    agent = await busy_agent()
    async with client_of(agent) as client:
        for name, verdict in (("small", "is admitted"), ("large", "is rejected: TopologyAffinityError")):
            page = (await client.get(f"/pods/default-{name}")).text
            (link,) = re.findall(r'<a href="([^"]+)">One file for a ticket</a>', page)
            response = await client.get(link)

            assert response.headers["content-disposition"] == f'attachment; filename="default-{name}.html"'
            assert "sandbox" in response.headers["content-security-policy"]
            assert f"<h1>Pod default/{name} {verdict} (" in response.text
            assert "<script" not in response.text
            assert response.text.count("<svg") == 1
        assert "What would admit it" in response.text
        assert 'href="/pods/default-large/file"' in (await client.get("/decisions/2")).text
        assert len(agent.queue.state.shown_host().ledger.pods) == 1
        assert (await client.get("/pods/nobody/file")).status_code == 404


def test_links_and_sessions_expire():
    now = [0.0]
    sessions = Sessions(now=lambda: now[0])
    late = sessions.create_link().partition("=")[2]
    value = sessions.start()
    request = request_with(value)

    now[0] = LINK_SECONDS
    assert not sessions.redeem(late)
    assert sessions.has(request)
    now[0] += SESSION_SECONDS
    assert not sessions.has(request)


def request_with(cookie: str):
    from starlette.requests import Request  # noqa: PLC0415 - only here

    headers = [(b"cookie", f"alignup-80={cookie}".encode())]
    return Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/",
            "headers": headers,
            "server": ("agent", 80),
            "scheme": "http",
            "query_string": b"",
        }
    )


async def test_https_cookies_belong_to_this_host_only():
    access = rules()
    transport = httpx2.ASGITransport(app=app_of(await busy_agent(), access=access))
    async with httpx2.AsyncClient(transport=transport, base_url="https://agent") as client:
        cookie = (await client.get(access.sessions.create_link())).headers["set-cookie"]

        assert cookie.startswith("__Host-alignup-")
        assert cookie.endswith("; Secure")


def test_the_script_renews_the_page_after_every_kind_of_event():
    """Browsers pass on only the events that a script has named."""
    kinds = re.search(r"const KINDS = (\[.*?\]);", static_file("pages.js"))
    assert kinds is not None
    assert set(json.loads(kinds[1])) == {*EventKind, MISSED, CHANGED}
