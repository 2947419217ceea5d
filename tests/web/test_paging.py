"""Lists in pages: consistent while pods come and go, and built without holding up other requests."""

import asyncio
import base64
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.web import paging
from alignup.web.paging import SnapshotPager, TokenExpiredError, encode_items
from tests.agent.fake_backend import FakeBackend, client_of, manifest

pytestmark = pytest.mark.anyio


async def admit(agent, *names):
    for name in names:
        await agent.admit_document(manifest(name))


async def names_in(client, query=""):
    """The names of a page, and the token of the next."""
    response = await client.get(f"/v1/pods{query}")
    assert response.status_code == 200, response.text
    document = response.json()
    return [pod["name"] for pod in document["pods"]], document["metadata"]


async def test_all_pages_show_the_moment_of_the_first():
    agent = FakeBackend()
    await admit(agent, *"abcde")
    async with client_of(agent) as client:
        first, metadata = await names_in(client, "?limit=2")
        assert metadata["remainingItemCount"] == 3
        agent.remove("default-a")
        agent.remove("default-d")
        await admit(agent, "f")

        second, metadata = await names_in(client, f"?limit=2&continue={metadata['continue']}")
        third, metadata = await names_in(client, f"?limit=2&continue={metadata['continue']}")

        assert (first, second, third) == (["a", "b"], ["c", "d"], ["e"])
        assert metadata == {"continue": None, "remainingItemCount": 0}
        assert (await names_in(client))[0] == ["b", "c", "e", "f"]


@given(st.lists(st.integers(1, 7), min_size=30, max_size=30), st.integers(0, 30))
def test_pages_of_any_size_make_up_the_list(limits, count):
    async def listed():
        pager = SnapshotPager[int](lambda number: b"%d" % number)
        items: list[bytes] = []
        token = None
        for limit in limits:
            page = await pager.page(lambda: range(count), limit=limit, token=token)
            items += page.items
            assert page.remaining == count - len(items)
            token = page.token
            if token is None:
                return items
        return items

    assert asyncio.run(listed()) == [b"%d" % number for number in range(count)]


def token_of(text):
    return base64.urlsafe_b64encode(text).decode()


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("nonsense", id="not base64"),
        pytest.param(token_of(b"nonsense"), id="not a token"),
        pytest.param(token_of(b"\xff"), id="not ASCII"),
        pytest.param(token_of(b"0123abc.1"), id="too short"),
    ],
)
async def test_a_text_that_is_no_token_is_a_bad_request(token):
    async with client_of(FakeBackend()) as client:
        response = await client.get("/v1/pods", params={"continue": token})

        assert response.status_code == 400
        assert response.json()["errors"] == [{"field": "continue", "message": "must be metadata.continue of a page"}]


async def test_a_client_with_the_token_of_an_agent_that_was_restarted_lists_again():
    async with client_of(FakeBackend()) as client:
        response = await client.get("/v1/pods", params={"continue": token_of(b"0123456789abcdef.1")})

        assert response.status_code == 410
        assert "list the pods again without it" in response.json()["detail"]


async def test_a_position_beyond_the_list_is_its_end():
    agent = FakeBackend()
    await admit(agent, *"abc")
    async with client_of(agent) as client:
        token = (await names_in(client, "?limit=2"))[1]["continue"]
        key, _, _ = base64.urlsafe_b64decode(token).partition(b".")

        assert await names_in(client, f"?continue={token_of(key + b'.999999999999')}") == (
            [],
            {"continue": None, "remainingItemCount": 0},
        )


async def test_snapshots_expire_and_are_few():
    clock = [0.0]
    pager = SnapshotPager[str](str.encode, now=lambda: clock[0])
    tokens = [(await pager.page(lambda: "abc", limit=1, token=None)).token for _ in range(17)]

    with pytest.raises(TokenExpiredError):
        await pager.page(lambda: "", limit=1, token=tokens[0])
    assert (await pager.page(lambda: "", limit=1, token=tokens[1])).items == [b"b"]
    clock[0] += 301
    with pytest.raises(TokenExpiredError):
        await pager.page(lambda: "", limit=1, token=tokens[1])


async def test_a_large_page_ends_early(monkeypatch):
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 10)
    pager = SnapshotPager[str](lambda text: text.encode() * 4)

    page = await pager.page(lambda: "abcde", limit=5, token=None)

    assert page.items == [b"aaaa", b"bbbb", b"cccc"]
    assert page.remaining == 2


async def test_a_page_of_decisions_may_end_early(monkeypatch):
    agent = FakeBackend()
    await admit(agent, *"abc")
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 1)
    async with client_of(agent) as client:
        page = (await client.get("/v1/decisions")).json()
        rest = (await client.get(f"/v1/decisions?before={page['next']}")).json()

    assert [decision["id"] for decision in page["decisions"]] == [3]
    assert [decision["id"] for decision in rest["decisions"]] == [2]


async def test_other_tasks_run_while_a_list_is_built(monkeypatch):
    """The clock of this test advances by a millisecond per item."""
    built: list[int] = []
    seen: list[int] = []
    monkeypatch.setattr(time, "perf_counter", lambda: len(built) / 1000)

    def encode(item):
        built.append(item)
        return b"."

    async def look():
        while len(built) < 1000:
            seen.append(len(built))
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(look())
    await encode_items(range(1000), encode, limit=1000)
    await watching

    assert max(after - before for before, after in itertools.pairwise(seen)) <= 20


async def test_lone_surrogates_survive_in_lists(monkeypatch):
    agent = FakeBackend()
    await admit(agent, "a")
    monkeypatch.setattr(agent, "notes", ("\udcff.yaml cannot be used",))
    async with client_of(agent) as client:
        document = (await client.get("/v1/pods")).json()

    assert document["notes"] == ["\udcff.yaml cannot be used"]
    assert [pod["name"] for pod in document["pods"]] == ["a"]
