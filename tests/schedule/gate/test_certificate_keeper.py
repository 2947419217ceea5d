"""Two replicas that keep the certificates of one webhook."""

import asyncio
import base64
from dataclasses import replace

import pytest

from alignup.kubernetes.api import Access, ApiClient
from alignup.schedule.gate.certificates import SECRETS, WEBHOOK_CONFIGURATIONS, CertificateKeeper, read_secret
from alignup.testing.api_server import ApiFault
from tests.deadlines import until
from tests.kubernetes.api.tasks import running
from tests.schedule.gate.test_certificates import DAY, NAMES, START, handshake

pytestmark = pytest.mark.anyio
SECRET = SECRETS.at("alignup-webhook", namespace="alignup-system")
CONFIGURATION = WEBHOOK_CONFIGURATIONS.at("alignup-gate")


class Clock:
    def __init__(self, now=START):
        self.now = now

    def __call__(self):
        return self.now.timestamp()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def replicas(server, timing, clock):
    """Two keepers that do nothing but follow the API server; tests have them check."""
    access = Access(server=server.url, source="the test")
    async with ApiClient(access, timing=replace(timing, time_of_day=clock)) as client, running() as start:
        keepers = [CertificateKeeper(client, secret=SECRET, configuration=CONFIGURATION, names=NAMES) for _ in "ab"]
        for keeper in keepers:
            for informer in (keeper.secrets, keeper.configurations):
                start(informer.run())
                await informer.wait_synced()
        yield keepers


def configuration(*bundles):
    kind = {"apiVersion": WEBHOOK_CONFIGURATIONS.api_version, "kind": WEBHOOK_CONFIGURATIONS.kind}
    webhooks = [
        {"name": f"{number}.alignup.dev", "clientConfig": {"service": {"name": "alignup"}, **bundle}}
        for number, bundle in enumerate(bundles or ({}, {}))
    ]
    return {**kind, "metadata": {"name": "alignup-gate"}, "webhooks": webhooks}


def stored(server):
    (secret,) = server.objects("secrets")
    return read_secret(SECRETS.type(data=secret["data"]))


def bundles(server):
    (configuration,) = server.objects("mutatingwebhookconfigurations")
    return [base64.b64decode(webhook["clientConfig"].get("caBundle", "")) for webhook in configuration["webhooks"]]


def versions(*informers):
    return {name: obj.metadata.resource_version for each in informers for (_, name), obj in each.objects.items()}


async def seen(server, keeper):
    """Wait until a keeper has seen what the server has."""
    followed = {"secrets": keeper.secrets, "mutatingwebhookconfigurations": keeper.configurations}
    stored = [metadata["metadata"] for plural in followed for metadata in server.objects(plural)]
    known = {metadata["name"]: metadata["resourceVersion"] for metadata in stored}
    await until(lambda: versions(*followed.values()) == known)


async def check(server, *keepers):
    for keeper in keepers:
        await seen(server, keeper)
        await keeper.check()


async def test_the_first_replica_creates_the_certificate_and_all_webhooks_trust_it(server, replicas):
    server.put(configuration())
    await check(server, *replicas)

    assert bundles(server) == [stored(server).bundle] * 2
    (written,) = server.objects("mutatingwebhookconfigurations")
    assert written["webhooks"][0]["clientConfig"]["service"] == {"name": "alignup"}
    assert [keeper.expiry for keeper in replicas] == [START + 90 * DAY] * 2
    assert [keeper.problems for keeper in replicas] == [(), ()]


async def test_of_two_replicas_that_start_at_once_one_wins_and_both_use_its_certificate(server, replicas):
    server.put(configuration())
    await asyncio.gather(*(seen(server, keeper) for keeper in replicas))
    await asyncio.gather(*(keeper.check() for keeper in replicas))
    await check(server, *replicas)

    assert replicas[0].current == replicas[1].current == stored(server)
    assert bundles(server) == [stored(server).bundle] * 2


async def test_both_replicas_are_trusted_at_every_step_of_a_rotation(server, replicas, clock):
    server.put(configuration())
    await check(server, *replicas)
    history = {stored(server).authorities}
    for days in range(0, 400, 30):
        clock.now = START + days * DAY
        for number in range(2):
            await check(server, replicas[(days + number) % 2])  # the other one has not seen the change
            history.add(stored(server).authorities)
            for replica in replicas:
                for bundle in bundles(server):
                    handshake(replica.context(), bundle, ignore_time=True)

    assert sorted(map(len, history)) == [1, 1, 2]
    assert replicas[0].expiry > clock.now


async def test_a_secret_with_garbage_is_replaced_and_a_changed_bundle_is_restored(server, replicas):
    server.put(configuration({"caBundle": base64.b64encode(b"other").decode()}))
    kind = {"apiVersion": "v1", "kind": "Secret"}
    server.put({**kind, "metadata": {"name": SECRET.name, "namespace": SECRET.namespace}, "data": {"ca.crt": "!"}})
    await check(server, *replicas)

    assert bundles(server) == [stored(server).bundle]
    assert replicas[0].expiry is not None


async def test_a_missing_configuration_is_a_problem_that_says_what_to_do(server, replicas):
    await check(server, replicas[0])

    assert (
        "mutatingwebhookconfigurations.admissionregistration.k8s.io alignup-gate: create it" in replicas[0].problems[0]
    )
    server.put(configuration())
    await check(server, *replicas)
    assert replicas[0].problems == ()


async def test_a_failed_write_is_a_problem_until_it_succeeds(server, replicas):
    server.put(configuration())
    server.inject(ApiFault(status=403, message="secrets is forbidden", times=1), verb="create", resource="secrets")
    await check(server, replicas[0])

    assert replicas[0].problems == ("create secrets: secrets is forbidden",)
    with pytest.raises(RuntimeError, match="no certificate"):
        replicas[0].context()
    await check(server, replicas[0])
    assert replicas[0].problems == ()


async def test_running_keepers_follow_each_other(server, client):
    server.put(configuration())
    keepers = [CertificateKeeper(client, secret=SECRET, configuration=CONFIGURATION, names=NAMES) for _ in "ab"]
    async with running() as start:
        for keeper in keepers:
            start(keeper.run())
        for keeper in keepers:
            await keeper.ready.wait()
        await until(lambda: bundles(server) == [stored(server).bundle] * 2)

    assert keepers[0].current == keepers[1].current
