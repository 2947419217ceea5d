"""The installation makes the authority of the webhook, publishes it, and can be repeated."""

import asyncio
import base64
from dataclasses import replace

import pytest

from alignup.kubernetes.api import Access, ApiClient
from alignup.kubernetes.api.errors import ConflictError, ForbiddenError, NotFoundError
from alignup.schedule.gate.authority_installation import (
    ATTEMPTS,
    WARNING_CONFIGURATIONS,
    WEBHOOK_CONFIGURATIONS,
    install_authority,
)
from alignup.schedule.gate.certificates import (
    AUTHORITY_LIFE,
    AUTHORITY_RENEWAL,
    SECRETS,
    read_secret,
    secret_data,
)
from alignup.testing.api_server import ApiFault
from tests.schedule.gate.test_certificates import DAY, NAMES, START, first

pytestmark = pytest.mark.anyio
SECRET = SECRETS.at("alignup-webhook", namespace="alignup-system")
CONFIGURATION = WEBHOOK_CONFIGURATIONS.at("alignup-gate")
WARNINGS = WARNING_CONFIGURATIONS.at("alignup-warnings")


class Clock:
    def __init__(self, now=START):
        self.now = now

    def __call__(self):
        return self.now.timestamp()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def install(server, timing, clock):
    """Install the authority for two webhooks, which do not trust it yet."""
    server.put(configuration())
    access = Access(server=server.url, source="the test")
    async with ApiClient(access, timing=replace(timing, time_of_day=clock)) as client:
        yield lambda: install_authority(
            client, secret=SECRET, configuration=CONFIGURATION, names=NAMES, warnings=WARNINGS
        )


def configuration(*bundles):
    kind = {"apiVersion": WEBHOOK_CONFIGURATIONS.api_version, "kind": WEBHOOK_CONFIGURATIONS.kind}
    webhooks = [
        {"name": f"{number}.alignup.dev", "clientConfig": {"service": {"name": "alignup"}, **bundle}}
        for number, bundle in enumerate(bundles or ({}, {}))
    ]
    return {**kind, "metadata": {"name": "alignup-gate"}, "webhooks": webhooks}


def warning_configuration():
    kind = {"apiVersion": WARNING_CONFIGURATIONS.api_version, "kind": WARNING_CONFIGURATIONS.kind}
    webhook = {"name": "warn.alignup.dev", "clientConfig": {"service": {"name": "alignup"}}}
    return {**kind, "metadata": {"name": "alignup-warnings"}, "webhooks": [webhook]}


def secret(data):
    kind = {"apiVersion": "v1", "kind": "Secret"}
    return {**kind, "metadata": {"name": SECRET.name, "namespace": SECRET.namespace}, "data": data}


def stored(server):
    (document,) = server.objects("secrets")
    return read_secret(SECRETS.type(data=document["data"]))


def bundles(server):
    (document,) = server.objects("mutatingwebhookconfigurations")
    return [base64.b64decode(webhook["clientConfig"].get("caBundle", "")) for webhook in document["webhooks"]]


def is_installed(server, certificates):
    """Whether these certificates are in the Secret, and all webhooks trust them."""
    return stored(server) == certificates and bundles(server) == [certificates.bundle] * 2


async def test_the_first_run_creates_the_secret_and_all_webhooks_trust_it(server, install):
    certificates = await install()

    assert is_installed(server, certificates)
    (written,) = server.objects("mutatingwebhookconfigurations")
    assert written["webhooks"][0]["clientConfig"]["service"] == {"name": "alignup"}


async def test_a_webhook_that_warns_trusts_it_as_well_even_if_it_comes_later(server, install):
    certificates = await install()
    server.put(warning_configuration())

    assert await install() == certificates
    (written,) = server.objects("validatingwebhookconfigurations")
    assert base64.b64decode(written["webhooks"][0]["clientConfig"]["caBundle"]) == certificates.bundle


async def test_a_second_run_writes_nothing(server, install):
    await install()
    versions = [server.objects(kind) for kind in ("secrets", "mutatingwebhookconfigurations")]

    await install()

    assert [server.objects(kind) for kind in ("secrets", "mutatingwebhookconfigurations")] == versions


async def test_a_changed_bundle_is_restored(server, install):
    certificates = await install()
    server.put(configuration({"caBundle": base64.b64encode(b"other").decode()}, {}))

    assert await install() == certificates
    assert bundles(server) == [certificates.bundle] * 2


async def test_the_authority_of_an_earlier_version_stays_trusted_beside_the_new_one(server, install):
    old = first(START + 300 * DAY - AUTHORITY_LIFE)  # an earlier version's is valid for a year
    server.put(secret(secret_data(old)))

    certificates = await install()

    assert certificates.authorities[1:] == old.authorities
    assert certificates.serving == old.serving
    assert is_installed(server, certificates)


@pytest.mark.parametrize(("left", "authorities"), [(2 * DAY, 2), (-2 * DAY, 1)], ids=["expires soon", "has expired"])
async def test_an_authority_that_ends_is_replaced(server, install, clock, left, authorities):
    before = await install()
    clock.now = START + AUTHORITY_LIFE - (AUTHORITY_RENEWAL if left > 0 * DAY else 0 * DAY) + 2 * DAY

    certificates = await install()

    assert certificates.authorities[0] != before.authorities[0]
    assert len(certificates.authorities) == authorities
    assert is_installed(server, certificates)


async def test_a_secret_with_garbage_is_replaced(server, install):
    server.put(secret({"ca.crt": "!"}))

    certificates = await install()

    assert stored(server) == certificates


async def test_no_authority_is_in_the_secret_that_no_api_server_trusts(server, install):
    """A run that cannot publish writes no Secret: replicas would sign with it."""
    fault = ApiFault(status=403, message="forbidden", times=1)
    server.inject(fault, verb="patch", resource="mutatingwebhookconfigurations")
    with pytest.raises(ForbiddenError):
        await install()
    assert server.objects("secrets") == []

    certificates = await install()
    assert is_installed(server, certificates)


async def test_a_run_that_ends_between_both_writes_is_completed_by_the_next(server, install):
    server.inject(ApiFault(status=403, message="forbidden", times=1), verb="create", resource="secrets")
    with pytest.raises(ForbiddenError):
        await install()
    assert all(bundles(server))

    certificates = await install()
    assert is_installed(server, certificates)


async def test_runs_at_the_same_time_agree(server, install):
    results = await asyncio.gather(*(install() for _ in range(3)))

    assert len(set(results)) == 1
    assert is_installed(server, results[0])


async def test_a_write_that_meets_one_of_a_replica_is_repeated_and_not_for_ever(server, install):
    server.put(secret(secret_data(first(START + 300 * DAY - AUTHORITY_LIFE))))
    fault = ApiFault(status=409, reason="Conflict", message="changed", times=ATTEMPTS)
    server.inject(fault, verb="patch", resource="secrets")
    with pytest.raises(ConflictError):
        await install()

    server.inject(replace(fault, times=ATTEMPTS - 1), verb="patch", resource="secrets")
    certificates = await install()

    assert is_installed(server, certificates)


async def test_a_missing_configuration_is_an_error_and_nothing_is_written(server, install):
    server.remove("mutatingwebhookconfigurations", "alignup-gate", namespace="")
    with pytest.raises(NotFoundError, match="alignup-gate"):
        await install()

    assert server.objects("secrets") == []
