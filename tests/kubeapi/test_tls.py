"""TLS to the test server: the server's certificate is verified, and ours is sent."""

import ssl
from dataclasses import replace

import pytest

from alignup.kubeapi import Access, ApiClient, Timing, find_access
from alignup.kubeapi.credentials import CredentialFile, UserCredentials
from alignup.kubeapi.errors import AccessError, UnreachableError
from alignup.testing.api_server import ApiServer
from tests.kubeapi.certificates import Authority

pytestmark = pytest.mark.anyio

ONCE = Timing(attempts=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_files(authority):
    return authority.sign("server", extensions="subjectAltName=IP:127.0.0.1,DNS:api.example\n")


@pytest.fixture(scope="module")
def client_files(authority):
    return authority.sign("client", extensions="extendedKeyUsage=clientAuth\n")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("other"))


def server_context(authority, files, *, client=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    if client:
        context.load_verify_locations(authority.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def version(access):
    async with ApiClient(access, timing=ONCE) as client:
        return (await client.version()).number


async def test_a_certificate_of_the_authority_is_accepted(authority, server_files, tmp_path):
    async with ApiServer(tls=server_context(authority, server_files)) as server:
        server.tokens = {"secret"}
        server.write_kubeconfig(tmp_path / "config", token="secret", authority=authority.certificate)  # noqa: S106

        assert await version(find_access(tmp_path / "config", environ={})) == (1, 36)


@pytest.mark.parametrize("system", [True, False], ids=["those of the system", "another one"])
async def test_a_certificate_of_another_authority_is_not(authority, server_files, other, system):
    async with ApiServer(tls=server_context(authority, server_files)) as server:
        access = Access(server=server.url, authority=b"" if system else other.certificate.read_bytes())

        with pytest.raises(UnreachableError, match=r"certificate verify failed"):
            await version(access)

        assert await version(replace(access, verify=False)) == (1, 36)
    assert len(server.requests) == 1


async def test_the_certificate_must_be_for_the_host_or_the_given_name(authority, server_files):
    async with ApiServer(tls=server_context(authority, server_files)) as server:
        access = Access(server=server.url, authority=authority.certificate.read_bytes())

        with pytest.raises(UnreachableError, match=r"certificate is not valid for 'elsewhere\.example'"):
            await version(replace(access, server_name="elsewhere.example"))

        assert await version(replace(access, server_name="api.example")) == (1, 36)


async def test_a_client_certificate_is_sent_and_read_again_when_it_changes(
    authority, server_files, client_files, other, tmp_path
):
    certificate, key = tmp_path / "crt", tmp_path / "key"
    wrong = other.sign("client", extensions="extendedKeyUsage=clientAuth\n")
    certificate.write_bytes(wrong[0].read_bytes())
    key.write_bytes(wrong[1].read_bytes())
    credentials = UserCredentials(
        certificate=CredentialFile(certificate, what="certificate"), key=CredentialFile(key, what="key")
    )
    async with ApiServer(tls=server_context(authority, server_files, client=True)) as server:
        access = Access(
            server=server.url, authority=authority.certificate.read_bytes(), credentials=credentials, source="test"
        )
        async with ApiClient(access, timing=ONCE) as client:
            with pytest.raises(UnreachableError):
                await client.version()

            certificate.write_bytes(client_files[0].read_bytes() + b"\n")
            key.write_bytes(client_files[1].read_bytes() + b"\n")
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


async def test_an_encrypted_key_is_an_error_and_no_question(authority, client_files, tmp_path):
    encrypted = tmp_path / "key"
    authority._run("ec", "-in", client_files[1], "-aes128", "-passout", "pass:secret", "-out", encrypted)  # noqa: SLF001
    credentials = UserCredentials(certificate=client_files[0].read_bytes(), key=encrypted.read_bytes())

    with pytest.raises(AccessError, match="unusable client certificate or key"):
        await version(Access(server="https://127.0.0.1:1", credentials=credentials, source="config"))
