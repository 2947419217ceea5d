"""The webhook's certificates: an authority of our own, a serving certificate that it signs, and when to renew them.

The installation makes authorities (``authority_installation``), because only it may write the webhook configuration.
The replicas of the service renew the serving certificate, with the key of the authority in the Secret.

Authorities overlap. A new one is trusted (its certificate is in the bundle of the webhook configuration) for a while
before it signs a serving certificate, and the old one stays trusted until it expires. So at every moment, each replica
has a serving certificate that each API server trusts, even if one of them has not seen the latest change. An authority
is in the configuration before it is in the Secret: what the replicas find there can sign.

Writes have the resource version of what was read, so of two replicas one wins, and the other uses what that one has
written.
"""

import asyncio
import base64
import binascii
import functools
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec
import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from alignup.align.errors import ParseError
from alignup.kubernetes.api import ApiClient, Informer, ObjectRef, Query, Resource
from alignup.kubernetes.api.errors import ApiError, ConflictError
from alignup.kubernetes.api.objects import ObjectMeta
from alignup.kubernetes.manifests.pod_decoder import Labels, ObjectPart

AUTHORITY_LIFE = timedelta(days=3650)
AUTHORITY_RENEWAL = AUTHORITY_LIFE / 3  #: before its end, when an installation adds another authority
AUTHORITY_WARNING = timedelta(days=365)  #: before its end, when the service asks for another
SERVING_LIFE = timedelta(days=90)
SETTLING = timedelta(hours=1)  #: before a new authority signs
CLOCK_DIFFERENCE = timedelta(hours=1)  #: certificates are valid from this long before they are made
_RENEWED = 2 / 3  #: of its life, after which a serving certificate is renewed
CHECK_SECONDS = 600.0  #: between checks whether a certificate must be renewed
RETRY_SECONDS = 10.0  #: after a failed write

_AUTHORITIES, _AUTHORITY_KEY, _SERVING, _SERVING_KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"

_INSTALL = "run 'alignup webhook-certificates', as the installation does (docs/gate.md)"

_log = structlog.get_logger()


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
            if _public_key(data[name], name) != _key(data[key_name], key_name).public_key():
                raise ParseError(f"{key_name} belongs to another certificate than {name}")
        _names(data[_SERVING])
        return cls(authorities, data[_AUTHORITY_KEY], data[_SERVING], data[_SERVING_KEY])


def renew_authority(current: WebhookCertificates | None, *, names: Sequence[str], now: datetime) -> WebhookCertificates:
    """Return *current* with an authority that lasts, and without expired authorities.

    *names*: the names by which API servers call the webhook.
    """
    trusted = tuple(pem for pem in current.authorities if not _expired(pem, now)) if current else ()
    if current is None or current.authorities[0] not in trusted:
        return _issue(_with_authority((), now), names, now)
    if _certificate(trusted[0]).not_valid_after_utc - now < AUTHORITY_RENEWAL:
        return _with_authority(trusted, now, serving=current.serving, serving_key=current.serving_key)
    return replace(current, authorities=trusted)


def renew_serving(current: WebhookCertificates, *, names: Sequence[str], now: datetime) -> WebhookCertificates:
    """Return *current* with a serving certificate for *names* that lasts; an expired authority signs none."""
    if _expired(current.authorities[0], now) or not _needs_serving(current, names, now):
        return current
    return _issue(current, names, now)


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


def authority_expiry(certificates: WebhookCertificates) -> datetime:
    """Return when the newest authority expires."""
    return _certificate(certificates.authorities[0]).not_valid_after_utc


def _needs_serving(current: WebhookCertificates, names: Sequence[str], now: datetime) -> bool:
    serving, newest = _certificate(current.serving), current.authorities[0]
    if not _valid(current.serving, now) or not any(_signed(serving, authority) for authority in current.authorities):
        return True
    due = _old(current.serving, now) or _names(current.serving) != sorted(names) or not _signed(serving, newest)
    creation = _certificate(newest).not_valid_before_utc + CLOCK_DIFFERENCE
    return due and (len(current.authorities) == 1 or now >= creation + SETTLING)


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
    """Return the same authorities with a new serving certificate, which the newest authority signs."""
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


def _expired(pem: bytes, now: datetime) -> bool:
    return now >= _certificate(pem).not_valid_after_utc


def _old(pem: bytes, now: datetime) -> bool:
    start, end = _certificate(pem).not_valid_before_utc, _certificate(pem).not_valid_after_utc
    return now >= start + _RENEWED * (end - start)


def _signed(certificate: x509.Certificate, authority: bytes) -> bool:
    try:
        certificate.verify_directly_issued_by(_certificate(authority))
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
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


def _public_key(pem: bytes, name: str) -> object:
    try:
        return _certificate(pem, name).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ParseError(f"{name} has no key that is known: {error}") from None


def _names(pem: bytes) -> list[str]:
    """Return the names of a serving certificate, sorted."""
    try:
        extension = _certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise ParseError(f"{_SERVING} has no names: {error}") from None
    return sorted(extension.value.get_values_for_type(x509.DNSName))


def _key(pem: bytes, name: str = _AUTHORITY_KEY) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
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


# The Secret


class Secret(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: Labels = msgspec.field(default_factory=dict)  #: each value in base64


SECRETS = Resource(type=Secret, kind="Secret", plural="secrets", namespaced=True)


def read_secret(secret: Secret) -> WebhookCertificates:
    """Read certificates; ``ParseError`` if the Secret has none."""
    return WebhookCertificates.from_data({name: decoded(text) for name, text in secret.data.items()})


async def patch_secret(
    client: ApiClient, ref: ObjectRef[Secret], old: Secret, certificates: WebhookCertificates
) -> None:
    """Replace the certificates in a Secret; ``ConflictError`` if it has changed since it was read."""
    metadata = {"resourceVersion": old.metadata.resource_version}
    await client.patch(ref, {"metadata": metadata, "data": secret_data(certificates)})


def secret_data(certificates: WebhookCertificates) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in certificates.to_data().items()}


def decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


class CertificateKeeper:
    """The serving certificate of one replica's webhook, which API servers call by *names*.

    *loaded* is called with the times when a new serving certificate and its authority expire.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        secret: ObjectRef[Secret],
        names: Sequence[str],
        loaded: Callable[[datetime, datetime], object] = lambda _serving, _authority: None,
    ) -> None:
        self.problem = ""  #: why API servers may not trust the certificate, now or before long
        self._client = client
        self._secret_ref = secret
        self._names = tuple(names)
        self._loaded = loaded
        query = Query(namespace=secret.namespace, fields=f"metadata.name={secret.name}")
        self.secrets = Informer(client, secret.resource, query)
        self.current: WebhookCertificates | None = None  #: as last loaded
        self._context: ssl.SSLContext | None = None
        self._changed = asyncio.Event()
        self.ready = asyncio.Event()  #: set when there is a certificate

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings for a new connection; call it once the keeper is ready."""
        if self._context is None:
            raise RuntimeError("there is no certificate yet")
        return self._context

    async def run(self) -> None:
        """Keep the serving certificate valid until cancelled."""
        self.secrets.subscribe(lambda _change: self._changed.set())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.secrets.run())
            await self.secrets.wait_synced()
            while True:
                self._changed.clear()
                seconds = CHECK_SECONDS if await self.check() else RETRY_SECONDS
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._changed.wait()

    async def check(self) -> bool:
        """Load and renew the serving certificate; return whether that succeeded."""
        written = True
        try:
            problem = await self._check_secret()
        except ConflictError:  # another replica was faster; its change will arrive
            problem = ""
        except ApiError as error:
            problem, written = str(error), False
        except Exception as error:  # noqa: BLE001 - whatever the Secret contains, the service goes on
            problem = f"the Secret is unusable, {error}: {_INSTALL}"
        if problem and problem != self.problem:
            _log.warning("problem with the webhook certificate", secret=str(self._secret_ref), problem=problem)
        self.problem = problem
        return written

    async def _check_secret(self) -> str:
        """Return what an operator has to do about the Secret."""
        secret = self.secrets.get(self._secret_ref.name, namespace=self._secret_ref.namespace)
        if secret is None:
            return f"the Secret does not exist: {_INSTALL}"
        stored_certificates = read_secret(secret)
        now = datetime.fromtimestamp(self._client.timing.time_of_day(), UTC)
        certificates = renew_serving(stored_certificates, names=self._names, now=now)
        if certificates != stored_certificates:
            await patch_secret(self._client, self._secret_ref, secret, certificates)
            expires = expiry(certificates).isoformat()
            _log.info("webhook certificate renewed", secret=str(self._secret_ref), expires=expires)
        authority_end = authority_expiry(certificates)
        if certificates != self.current:
            self._context = server_context(certificates)
            self.current = certificates
            self._loaded(expiry(certificates), authority_end)
            self.ready.set()
        if authority_end - now < AUTHORITY_WARNING:
            expired = "has expired" if authority_end <= now else "expires"
            return f"the authority {expired} on {authority_end:%Y-%m-%d}: {_INSTALL}"
        return ""
