"""The webhook's certificates: an authority of our own, a serving certificate that it signs, and when to renew them.

Authorities overlap. A new one is trusted (its certificate is in the bundle of the webhook configuration) for a while
before it signs a serving certificate, and the old one stays trusted until it expires. So at every moment, each replica
has a serving certificate that each API server trusts, even if one of them has not seen the latest change.
"""

import functools
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from alignup.align.errors import ParseError

AUTHORITY_LIFE = timedelta(days=365)
SERVING_LIFE = timedelta(days=90)
SETTLING = timedelta(hours=1)  #: before a new authority signs
CLOCK_DIFFERENCE = timedelta(hours=1)  #: certificates are valid from this long before they are made
_RENEWED = 2 / 3  #: of its life, after which a certificate is renewed

_AUTHORITIES, _AUTHORITY_KEY, _SERVING, _SERVING_KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"


@dataclass(frozen=True, slots=True)
class WebhookCertificates:
    """What the replicas share in a Secret; everything in PEM."""

    authorities: tuple[bytes, ...]  #: all that are trusted, the newest first
    authority_key: bytes = b""  #: of the newest
    serving: bytes = b""
    serving_key: bytes = b""

    @property
    def bundle(self) -> bytes:
        """The authorities for the webhook configuration."""
        return b"".join(self.authorities)

    def to_data(self) -> Mapping[str, bytes]:
        return {
            _AUTHORITIES: self.bundle,
            _AUTHORITY_KEY: self.authority_key,
            _SERVING: self.serving,
            _SERVING_KEY: self.serving_key,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, bytes]) -> "WebhookCertificates":
        """Read the content of a Secret; ``ParseError`` if it is not a set of certificates that belong together."""
        missing = [name for name in (_AUTHORITIES, _AUTHORITY_KEY, _SERVING, _SERVING_KEY) if not data.get(name)]
        if missing:
            raise ParseError(f"{', '.join(missing)} is missing")
        authorities = tuple(map(_pem, _certificates(data[_AUTHORITIES], _AUTHORITIES)))
        for name, key_name in ((_AUTHORITIES, _AUTHORITY_KEY), (_SERVING, _SERVING_KEY)):
            if _certificate(data[name], name).public_key() != _key(data[key_name], key_name).public_key():
                raise ParseError(f"{key_name} belongs to another certificate than {name}")
        return cls(authorities, data[_AUTHORITY_KEY], data[_SERVING], data[_SERVING_KEY])


def renew(
    current: WebhookCertificates | None, *, names: Sequence[str], published: bytes, now: datetime
) -> WebhookCertificates | None:
    """Return what must replace *current* now (``None``: nothing must).

    *names* are those by which API servers call the webhook; *published* is the bundle in the webhook configuration.
    """
    if current is None or not _valid(current.authorities[0], now):
        return _issue(_with_authority((), now), names, now)
    trusted = tuple(authority for authority in current.authorities if _valid(authority, now))
    renewed = replace(current, authorities=trusted)
    if _old(trusted[0], now):
        renewed = _with_authority(trusted, now, serving=current.serving, serving_key=current.serving_key)
    if _needs_serving(renewed, names, published, now):
        renewed = _issue(renewed, names, now)
    return None if renewed == current else renewed


def server_context(certificates: WebhookCertificates) -> ssl.SSLContext:
    """Return the TLS settings of a server with this certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Python reads certificates from files only. This one is in memory, so that the key is on no disk.
    file = os.memfd_create("alignup-webhook", os.MFD_CLOEXEC)
    try:
        os.write(file, certificates.serving + certificates.serving_key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def expiry(certificates: WebhookCertificates) -> datetime:
    """Return when the serving certificate expires."""
    return _certificate(certificates.serving).not_valid_after_utc


def _needs_serving(current: WebhookCertificates, names: Sequence[str], published: bytes, now: datetime) -> bool:
    serving, newest = _certificate(current.serving), current.authorities[0]
    if not _valid(current.serving, now) or not any(_signed(serving, authority) for authority in current.authorities):
        return True
    extension = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    known = sorted(extension.value.get_values_for_type(x509.DNSName))
    due = _old(current.serving, now) or known != sorted(names) or not _signed(serving, newest)
    made = _certificate(newest).not_valid_before_utc + CLOCK_DIFFERENCE
    return due and (len(current.authorities) == 1 or (newest in published and now >= made + SETTLING))


def _with_authority(
    trusted: tuple[bytes, ...], now: datetime, *, serving: bytes = b"", serving_key: bytes = b""
) -> WebhookCertificates:
    """Return these authorities and a new one."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Names differ, so that a certificate is verified with the authority that has signed it.
    name = f"alignup webhook authority {now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, key, now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return WebhookCertificates((_pem(certificate), *trusted), _pem_key(key), serving, serving_key)


def _issue(current: WebhookCertificates, names: Sequence[str], now: datetime) -> WebhookCertificates:
    """Return the same authorities with a new serving certificate, which the newest of them signs."""
    authority = _certificate(current.authorities[0])
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(SERVING_LIFE, authority.not_valid_after_utc - now)
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(_key(current.authority_key).public_key())
    certificate = (
        _builder("alignup webhook", key, now, life, issuer=authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(authority_key, critical=False)
        .sign(_key(current.authority_key), hashes.SHA256())
    )
    return replace(current, serving=_pem(certificate), serving_key=_pem_key(key))


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta, *, issuer: x509.Name | None = None
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_DIFFERENCE)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _valid(pem: bytes, now: datetime) -> bool:
    certificate = _certificate(pem)
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _old(pem: bytes, now: datetime) -> bool:
    start, end = _certificate(pem).not_valid_before_utc, _certificate(pem).not_valid_after_utc
    return now >= start + _RENEWED * (end - start)


def _signed(certificate: x509.Certificate, authority: bytes) -> bool:
    try:
        certificate.verify_directly_issued_by(_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


@functools.lru_cache(maxsize=16)
def _certificate(pem: bytes, name: str = _SERVING) -> x509.Certificate:
    return _certificates(pem, name)[0]


def _certificates(pem: bytes, name: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ParseError(f"{name} is not a certificate in PEM format: {error}") from None


def _key(pem: bytes, name: str = _AUTHORITY_KEY) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise ParseError(f"{name} is not a private key in PEM format: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ParseError(f"{name} is not an elliptic curve key")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
