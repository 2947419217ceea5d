"""The live configuration of a kubelet: its ``/configz`` endpoint."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from alignup import atomic_files
from alignup.align.errors import AlignError, FileError
from alignup.align.release import NEWEST, RELEASES
from alignup.kubernetes import configuration
from alignup.kubernetes.api.access import Access
from alignup.kubernetes.api.client import ApiClient
from alignup.kubernetes.api.objects import ApiNode
from alignup.kubernetes.api.timing import Timing
from alignup.kubernetes.configuration import Configuration, ConfigurationText

MAX_CONFIGZ = 1 << 20  #: bytes, from a kubelet that nobody vouches for; decoded, it can be 20 times as large
_KUBELET_PORT = 10250
_KUBELET_CERTIFICATE = "pki/kubelet.crt"  #: which the kubelet signs itself if nobody else does


@asynccontextmanager
async def configz_reader(
    access: Access, node: ApiNode, *, directory: Path, address: str = ""
) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """Yield a function that asks the kubelet of *node* for its configuration.

    *directory* is the kubelet's, *address* HOST:PORT (default: the node's internal address). Its certificate is
    verified with the authority of the cluster, and with the certificate in the kubelet's files.
    """
    addresses = [address.address for address in node.status.addresses if address.type == "InternalIP"]
    internal = next(iter(addresses), "127.0.0.1")
    default = f"[{internal}]:{_KUBELET_PORT}" if ":" in internal else f"{internal}:{_KUBELET_PORT}"
    certificate = atomic_files.read(directory / _KUBELET_CERTIFICATE)
    kubelet = replace(
        access,
        server=f"https://{address or default}",
        authority=b"\n".join(filter(None, (certificate, access.authority))),
        server_name=node.metadata.name if certificate else "",
        proxy="",
        headers=(),
        source="the kubelet",
    )
    async with ApiClient(kubelet, timing=Timing(attempts=1)) as client:
        yield lambda: client.get_raw("/configz", max_bytes=MAX_CONFIGZ)


async def read_configuration(
    file: Path, drop_in_dir: Path | None, configz: Callable[[], Awaitable[bytes]] | None
) -> tuple[Configuration, tuple[str, ...]]:
    """Read the live configuration, or the files that the kubelet read when it started; return it with notes.

    ``AlignError`` if neither can be read.
    """
    reason = ""
    if configz is not None:
        try:
            live = _live_configuration(await configz())
            return live.read(), live.notes
        except AlignError as error:
            reason = f"the live configuration is unknown: {error}"
    text = atomic_files.read(file)
    if text is None:
        raise FileError(f"{file}: no such file; {reason or 'name the configuration of the kubelet'}")
    file_configuration = configuration.unwrap(text, name=str(file))
    if drop_in_dir is not None:
        try:
            paths = configuration.find_drop_ins(drop_in_dir)
        except OSError as error:
            raise FileError(f"cannot read {error.filename}: {error.strerror}") from error
        drop_ins = [
            configuration.parse_drop_in(text, name=str(path))
            for path in paths
            if (text := atomic_files.read(path)) is not None
        ]
        file_configuration = configuration.merge_drop_ins(file_configuration, drop_ins, directory=str(drop_in_dir))
    notes = (f"{reason}; using {file}, without the flags of the kubelet",) if reason else ()
    return file_configuration.read(), (*notes, *file_configuration.notes)


def _live_configuration(text: bytes) -> ConfigurationText:
    """Return a kubelet's live configuration, read as by the newest release that accepts all its feature gates."""
    releases = (release for release in reversed(RELEASES) if release.minor <= NEWEST.minor)
    readings = [configuration.unwrap(text, name="/configz", release=next(releases))]
    while readings[-1].notes and (release := next(releases, None)):
        readings.append(configuration.unwrap(text, name="/configz", release=release))
    return readings[0] if readings[-1].notes else readings[-1]
