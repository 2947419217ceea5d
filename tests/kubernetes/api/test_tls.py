"""TLS to the test server: the server's certificate is verified, and ours is sent."""

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from alignup.kubernetes.api import Access, ApiClient, Timing, find_access
from alignup.kubernetes.api.credentials import CredentialFile, UserCredentials
from alignup.kubernetes.api.errors import AccessError, UnreachableError
from alignup.testing.api_server import ApiServer

pytestmark = pytest.mark.anyio

ONCE = Timing(attempts=1)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def server_certificate(authority):
    return authority.issue_cert("127.0.0.1", "api.example")


@pytest.fixture(scope="module")
def other():
    return trustme.CA()


def server_context(authority, certificate, *, client=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    if client:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def pem(certificate):
    """A certificate and its key."""
    return certificate.cert_chain_pems[0].bytes(), certificate.private_key_pem.bytes()


async def version(access):
    async with ApiClient(access, timing=ONCE) as client:
        return (await client.version()).number


async def test_a_certificate_of_the_authority_is_accepted(authority, server_certificate, tmp_path):
    async with ApiServer(tls=server_context(authority, server_certificate)) as server:
        server.tokens = {"secret"}
        authority.cert_pem.write_to_path(tmp_path / "ca.crt")
        server.write_kubeconfig(tmp_path / "config", token="secret", authority=tmp_path / "ca.crt")  # noqa: S106

        assert await version(find_access(tmp_path / "config", environ={})) == (1, 36)


@pytest.mark.parametrize("system", [True, False], ids=["those of the system", "another one"])
async def test_a_certificate_of_another_authority_is_not(authority, server_certificate, other, system):
    async with ApiServer(tls=server_context(authority, server_certificate)) as server:
        access = Access(server=server.url, authority=b"" if system else other.cert_pem.bytes())

        with pytest.raises(UnreachableError, match=r"certificate verify failed"):
            await version(access)

        assert await version(replace(access, verify=False)) == (1, 36)
    assert len(server.requests) == 1


async def test_an_expired_certificate_is_named_as_the_reason(authority):
    expired = authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) - timedelta(days=1))
    async with ApiServer(tls=server_context(authority, expired)) as server:
        with pytest.raises(UnreachableError, match="certificate has expired"):
            await version(Access(server=server.url, authority=authority.cert_pem.bytes()))


async def test_the_certificate_must_be_for_the_host_or_the_given_name(authority, server_certificate):
    async with ApiServer(tls=server_context(authority, server_certificate)) as server:
        access = Access(server=server.url, authority=authority.cert_pem.bytes())

        with pytest.raises(UnreachableError, match=r"certificate is not valid for 'elsewhere\.example'"):
            await version(replace(access, server_name="elsewhere.example"))

        assert await version(replace(access, server_name="api.example")) == (1, 36)


async def test_the_scheme_of_the_url_may_be_in_upper_case(authority, server_certificate):
    async with ApiServer(tls=server_context(authority, server_certificate)) as server:
        access = Access(server=server.url.replace("https", "HTTPS"), authority=authority.cert_pem.bytes())

        assert await version(access) == (1, 36)


async def test_a_client_certificate_is_sent_and_read_again_when_it_changes(
    authority, server_certificate, other, tmp_path
):
    certificate, key = tmp_path / "crt", tmp_path / "key"

    def write(pair):
        for path, content in zip((certificate, key), pair, strict=True):
            path.unlink(missing_ok=True)
            path.write_bytes(content)

    write(pem(other.issue_cert("client.example")))
    credentials = UserCredentials(
        certificate=CredentialFile(certificate, content="certificate"), key=CredentialFile(key, content="key")
    )
    async with ApiServer(tls=server_context(authority, server_certificate, client=True)) as server:
        access = Access(server=server.url, authority=authority.cert_pem.bytes(), credentials=credentials, source="test")
        async with ApiClient(access, timing=ONCE) as client:
            with pytest.raises(UnreachableError):
                await client.version()

            write(pem(authority.issue_cert("client.example")))
            assert (await client.version()).number == (1, 36)


@pytest.mark.parametrize(
    ("access", "message"),
    [
        pytest.param(
            Access(server="https://127.0.0.1:1", authority=b"text", source="config"),
            r"config: unusable certificate authority: ",
            id="authority",
        ),
        pytest.param(
            Access(
                server="https://127.0.0.1:1",
                credentials=UserCredentials(certificate=b"text", key=b"text"),
                source="config",
            ),
            r"config: unusable client certificate or key: ",
            id="client certificate",
        ),
    ],
)
async def test_unusable_certificates_are_named(access, message):
    with pytest.raises(AccessError, match=message):
        await version(access)


async def test_an_encrypted_key_is_an_error_and_no_question(authority):
    certificate, key = pem(authority.issue_cert("client.example"))
    encrypted = serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    credentials = UserCredentials(certificate=certificate, key=encrypted)

    with pytest.raises(AccessError, match="unusable client certificate or key"):
        await version(Access(server="https://127.0.0.1:1", credentials=credentials, source="config"))
