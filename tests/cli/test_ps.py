"""``alignup ps`` and the client list all pods of an agent, page by page."""

import json

import pytest

from alignup.web.address import parse_address
from alignup.web.agent_client import AgentClient, AgentError
from alignup.web.paging import SnapshotPager, TokenExpiredError
from tests.cli.commands import in_process
from tests.cli.fake_agent import serve_fake_agent
from tests.short_paths import short_directory

NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture
def expiries():
    """How often the second page has expired yet."""
    return [0]


@pytest.fixture
def agent(monkeypatch, expiries):
    """An agent with five pods and pages of two."""
    page = SnapshotPager.page

    async def small_page(self, items, *, limit, token):
        if token and expiries[0]:
            expiries[0] -= 1
            raise TokenExpiredError
        return await page(self, items, limit=min(limit, 2), token=token)

    monkeypatch.setattr(SnapshotPager, "page", small_page)
    with short_directory() as place, serve_fake_agent(place) as agent:
        for name in NAMES:
            agent.admit(name)
        yield agent


def test_ps_follows_pages(agent):
    listed = in_process("ps", env=agent.env).stdout
    document = json.loads(in_process("ps", "-o", "json", env=agent.env).stdout)

    assert [line.split()[0] for line in listed.splitlines()] == ["POD", *(f"default/{name}" for name in NAMES)]
    assert [pod["name"] for pod in document["pods"]] == NAMES
    assert document["notes"] == ["web.yaml cannot be used"]


def test_a_list_that_expires_starts_again(agent, expiries):
    expiries[0] = 2

    assert [pod["name"] for pod in AgentClient(parse_address(agent.address)).pods()] == NAMES


def test_a_list_that_always_expires_is_an_error(agent, expiries):
    expiries[0] = 100

    with pytest.raises(AgentError, match="is too busy to list its pods"):
        AgentClient(parse_address(agent.address)).pods()
