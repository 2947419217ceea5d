"""Two replicas that keep the certificate of one webhook, and the metrics and problems that operators see."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from alignup.kubernetes.api import Access, ApiClient
from alignup.schedule.gate.certificates import (
    AUTHORITY_LIFE,
    AUTHORITY_WARNING,
    SERVING_LIFE,
    CertificateKeeper,
    expiry,
    renew_authority,
    secret_data,
)
from alignup.testing.api_server import ApiFault
from tests.deadlines import until
from tests.kubernetes.api.tasks import running
from tests.schedule.gate.test_authority_installation import SECRET, Clock, secret, stored
from tests.schedule.gate.test_certificates import DAY, NAMES, START, first, handshake

pytestmark = pytest.mark.anyio


def expires(keeper):
    """When the serving certificate expires."""
    assert keeper.current is not None
    return expiry(keeper.current)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def replicas(server, timing, clock):
    """Two keepers that do nothing but follow the API server; tests have them check."""
    access = Access(server=server.url, source="the test")
    async with ApiClient(access, timing=replace(timing, time_of_day=clock)) as client, running() as start:
        keepers = [CertificateKeeper(client, secret=SECRET, names=NAMES) for _ in "ab"]
        for keeper in keepers:
            start(keeper.secrets.run())
            await keeper.secrets.wait_synced()
        yield keepers


def versions(keeper):
    return [secret.metadata.resource_version for secret in keeper.secrets.objects.values()]


async def check(server, *keepers):
    """Let keepers check what the server has."""
    for keeper in keepers:
        expected = [document["metadata"]["resourceVersion"] for document in server.objects("secrets")]
        await until(partial(lambda keeper, expected: versions(keeper) == expected, keeper, expected))
        await keeper.check()


async def test_replicas_use_the_certificate_of_the_installation(server, replicas):
    server.put(secret(secret_data(first())))
    await check(server, *replicas)

    assert [expires(keeper) for keeper in replicas] == [START + 90 * DAY] * 2
    assert [keeper.problem for keeper in replicas] == ["", ""]
    assert {request.method for request in server.requests} == {"GET"}


async def test_of_two_replicas_that_renew_at_once_one_wins_and_both_use_its_certificate(server, replicas, clock):
    server.put(secret(secret_data(first())))
    await check(server, *replicas)
    clock.now = START + 61 * DAY
    await asyncio.gather(*(keeper.check() for keeper in replicas))
    await check(server, *replicas)

    assert replicas[0].current == replicas[1].current == stored(server)
    assert expires(replicas[0]) == clock.now + SERVING_LIFE


async def test_both_replicas_are_trusted_at_every_step_of_a_rotation(server, replicas, clock):
    """The installation runs once a year, and publishes before it writes."""
    server.put(secret(secret_data(first())))
    await check(server, *replicas)
    for days in range(0, 4000, 50):
        clock.now = START + days * DAY
        if days % 350 == 0:
            server.put(secret(secret_data(renew_authority(stored(server), names=NAMES, now=clock.now))))
        published = stored(server).bundle
        for number in range(2):
            await check(server, replicas[(days + number) % 2])  # the other one has not seen the change
            for replica in replicas:
                handshake(replica.context(), published, ignore_time=True)

    assert len(stored(server).authorities) == 1
    assert expires(replicas[0]) > clock.now


async def test_without_the_secret_the_problem_says_what_to_do(server, replicas):
    await check(server, replicas[0])

    assert "the Secret does not exist: run 'alignup webhook-certificates'" in replicas[0].problem
    with pytest.raises(RuntimeError, match="no certificate"):
        replicas[0].context()
    server.put(secret(secret_data(first())))
    await check(server, replicas[0])
    assert replicas[0].problem == ""


async def test_a_secret_that_becomes_unusable_leaves_the_certificate_in_use(server, replicas):
    server.put(secret(secret_data(first())))
    await check(server, replicas[0])
    server.put(secret({"ca.crt": "!"}))
    await check(server, replicas[0])

    assert replicas[0].problem.startswith("the Secret is unusable, ca.crt, ca.key, tls.crt, tls.key is missing: run")
    assert expires(replicas[0]) == START + 90 * DAY
    assert server.objects("secrets")[0]["data"] == {"ca.crt": "!"}


async def test_a_certificate_that_tls_refuses_ends_nothing(server, replicas):
    """Who has the token of the service could write it."""
    good, key = first(), ec.generate_private_key(ec.SECP192R1())
    names = x509.SubjectAlternativeName([x509.DNSName(name) for name in NAMES])
    authority_key = load_pem_private_key(good.authority_key, None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(good.authorities[0])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(issuer.subject)
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(START)
        .not_valid_after(START + DAY)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pems = (
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
    server.put(secret(secret_data(replace(good, serving=pems[0], serving_key=pems[1]))))
    await check(server, replicas[0])

    assert "the Secret is unusable, [SSL: EE_KEY_TOO_SMALL]" in replicas[0].problem


@pytest.mark.parametrize(
    ("left", "problem"), [(200 * DAY, "expires on"), (-DAY, "has expired on")], ids=["soon", "over"]
)
async def test_an_authority_that_ends_is_a_problem_early(server, replicas, clock, left, problem):
    server.put(secret(secret_data(first())))
    clock.now = START + AUTHORITY_LIFE - AUTHORITY_WARNING - DAY
    await check(server, replicas[0])
    assert replicas[0].problem == ""

    clock.now = START + AUTHORITY_LIFE - left
    await check(server, replicas[0])

    assert replicas[0].problem.startswith(f"the authority {problem} 2036-11-13: run 'alignup webhook-certificates'")


async def test_a_failed_write_is_a_problem_until_it_succeeds(server, replicas, clock):
    server.put(secret(secret_data(first())))
    clock.now = START + 61 * DAY
    server.inject(ApiFault(status=403, message="secrets is forbidden", times=1), verb="patch", resource="secrets")
    await check(server, replicas[0])

    assert "secrets is forbidden" in replicas[0].problem
    await check(server, replicas[0])
    assert replicas[0].problem == ""


async def test_running_keepers_follow_each_other(server, client):
    keepers = [CertificateKeeper(client, secret=SECRET, names=NAMES) for _ in "ab"]
    async with running() as start:
        for keeper in keepers:
            start(keeper.run())
        server.put(secret(secret_data(renew_authority(None, names=(), now=START))))  # a name is missing
        for keeper in keepers:
            await keeper.ready.wait()
        await until(lambda: keepers[0].current == keepers[1].current == stored(server))

    assert keepers[0].problem == ""
