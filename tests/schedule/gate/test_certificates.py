"""The life of the webhook's certificates, over years."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from alignup.align.errors import ParseError
from alignup.schedule.gate.certificates import (
    AUTHORITY_LIFE,
    AUTHORITY_RENEWAL,
    CLOCK_DIFFERENCE,
    SERVING_LIFE,
    SETTLING,
    WebhookCertificates,
    authority_expiry,
    expiry,
    renew_authority,
    renew_serving,
    server_context,
)

NAMES = ("alignup.alignup-system.svc",)
START = datetime(2026, 11, 16, tzinfo=UTC)
DAY = timedelta(days=1)
_NO_CHECK_TIME = 0x200000  #: of OpenSSL; Python has no name for it


def first(now=START):
    return renew_authority(None, names=NAMES, now=now)


def serving(certificates, now, names=NAMES):
    return renew_serving(certificates, names=names, now=now)


def installed(certificates, now):
    return renew_authority(certificates, names=NAMES, now=now)


def handshake(server: ssl.SSLContext, bundle: bytes, name=NAMES[0], *, ignore_time=False):
    """Verify the server's certificate as an API server does; ``ssl.SSLError`` if it is not trusted."""
    trusting = ssl.create_default_context(cadata=bundle.decode())
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    if ignore_time:
        trusting.verify_flags |= _NO_CHECK_TIME
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(incoming, outgoing, server_hostname=name)
    answering = server.wrap_bio(outgoing, incoming, server_side=True)
    for _ in range(4):
        for end in (client, answering):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_a_new_certificate_is_trusted_by_its_name_and_by_no_other():
    made = first(datetime.now(UTC))
    context = server_context(made)

    handshake(context, made.bundle)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(context, made.bundle, "alignup.other.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|local issuer"):
        handshake(context, first(datetime.now(UTC)).bundle)


def test_it_survives_the_secret():
    made = first()

    assert WebhookCertificates.from_data(made.to_data()) == made


def test_nothing_is_renewed_before_time():
    made = first()

    for days in (0, 1, 30, 59):
        assert serving(made, START + days * DAY) == made
    for years in range(7):
        assert installed(made, START + years * 365 * DAY) == made


def test_a_serving_certificate_is_renewed_a_month_before_it_expires_and_the_authority_stays():
    made = first()
    renewed = serving(made, START + 61 * DAY)

    assert renewed.authorities == made.authorities
    assert expiry(made) == START + SERVING_LIFE
    assert expiry(renewed) == START + 61 * DAY + SERVING_LIFE


def test_authorities_are_replaced_without_a_moment_in_which_a_replica_is_not_trusted():
    """Two replicas, of which one has not seen the latest change, and so have not some API servers.

    The installation runs every 90 days, and publishes an authority before it writes the Secret.
    """
    history = [first()]
    published = history[0].bundle
    for days in range(0, 21 * 365, 10):
        now = START + days * DAY
        changed = installed(history[-1], now) if days % 90 == 0 else serving(history[-1], now)
        if changed == history[-1]:
            continue
        for certificates in (history[-1], changed):  # replicas
            for bundle in (published, changed.bundle):  # API servers
                assert any(part in bundle for part in _issuers(certificates)), now
        published = changed.bundle
        history.append(changed)
        assert expiry(changed) > now

    authorities = {certificates.authorities[0] for certificates in history}
    assert len(authorities) == 4  # in 21 years, one every 6.7 years
    assert max(len(certificates.authorities) for certificates in history) == 2


def _issuers(certificates):
    """The authorities that have signed the serving certificate."""
    certificate = x509.load_pem_x509_certificate(certificates.serving)
    parsed = [(encoded, x509.load_pem_x509_certificate(encoded)) for encoded in certificates.authorities]
    return [pem for pem, authority in parsed if authority.subject == certificate.issuer]


def test_a_new_authority_signs_only_once_it_is_settled():
    now = START + AUTHORITY_LIFE - AUTHORITY_RENEWAL + DAY
    fresh = serving(first(), now)

    both = installed(fresh, now)
    assert (len(both.authorities), both.serving) == (2, fresh.serving)
    assert authority_expiry(both) == now + AUTHORITY_LIFE
    assert installed(both, now) == both

    assert serving(both, now + SETTLING / 2) == both
    signed = serving(both, now + 2 * SETTLING)
    assert (signed.authorities, signed.serving != both.serving) == (both.authorities, True)
    assert _issuers(signed) == [both.authorities[0]]

    assert installed(signed, START + AUTHORITY_LIFE + DAY).authorities == both.authorities[:1]


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(START + SERVING_LIFE + DAY, id="it has expired"),
        pytest.param(START - CLOCK_DIFFERENCE - DAY, id="the clock was stepped back"),
    ],
)
def test_a_serving_certificate_that_is_not_valid_now_is_replaced_at_once(now):
    made = first()
    renewed = serving(made, now)

    assert now < expiry(renewed) <= now + SERVING_LIFE
    assert renewed.authorities == made.authorities
    assert _issuers(renewed)


def test_an_expired_authority_signs_nothing_and_an_installation_replaces_it():
    made, now = first(), START + AUTHORITY_LIFE + DAY

    assert serving(made, now) == made
    replaced = installed(made, now)
    assert replaced.authorities[0] != made.authorities[0]
    assert len(replaced.authorities) == 1
    assert _issuers(replaced)
    assert now < expiry(replaced)


def test_an_authority_that_an_earlier_version_made_for_a_year_is_replaced_and_trusted_until_it_expires():
    made = first(START + 365 * DAY - AUTHORITY_LIFE)  # it expires in a year
    upgraded = installed(made, START)

    assert upgraded.authorities[1:] == made.authorities
    assert upgraded.serving == made.serving
    assert authority_expiry(upgraded) == START + AUTHORITY_LIFE


def test_another_name_needs_another_certificate():
    made = first()
    renewed = serving(made, START + DAY, names=("other.svc",))

    assert renewed.serving != made.serving
    assert renewed.authorities == made.authorities


def without_names():
    """A serving certificate, and its key, by which no API server can verify a name."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAMES[0])])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = builder.serial_number(1).not_valid_before(START).not_valid_after(START + DAY).sign(key, hashes.SHA256())
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {"tls.crt": made.public_bytes(encoding), "tls.key": secret}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(without_names(), "tls.crt has no names", id="no names"),
        pytest.param({"tls.key": b""}, "tls.key is missing", id="missing"),
        pytest.param({"ca.crt": b"x"}, "ca.crt is not a certificate", id="no certificate"),
        pytest.param({"tls.crt": b"x"}, "tls.crt is not a certificate", id="no serving certificate"),
        pytest.param({"ca.key": b"x"}, "ca.key is not a private key", id="no key"),
        pytest.param({"tls.key": first().serving_key}, "tls.key belongs to another certificate than tls.crt", id="key"),
    ],
)
def test_a_secret_with_something_else_is_an_error(changes, message):
    with pytest.raises(ParseError) as caught:
        WebhookCertificates.from_data({**first().to_data(), **changes})

    assert message in str(caught.value)
