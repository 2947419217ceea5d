"""What a pod's ``/etc/hosts`` says: as the kubelet writes it, so that nothing in an image finds it different."""

from collections.abc import Iterable
from pathlib import Path

from alignup.kube.podspec.types import PodSpec

HostAlias = tuple[str, tuple[str, ...]]  #: an address, and its names

_USUAL = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


def hosts_file_content(
    spec: PodSpec, *, hostname: str, addresses: tuple[str, ...], host_file: Path | None = None
) -> str | None:
    """What the file of a pod says; *host_file* is the host's, where the pod is on its network.

    ``None``: the pod has no address yet, so there is nothing to say.
    """
    if host_file is not None:
        return host_network_hosts_file(host_file.read_text("utf-8", "replace"), aliases=spec.host_aliases)
    return pod_hosts_file(hostname, addresses, aliases=spec.host_aliases) if addresses else None


def pod_hosts_file(hostname: str, addresses: Iterable[str], *, aliases: tuple[HostAlias, ...] = ()) -> str:
    """Of a pod with addresses of its own."""
    own = "".join(f"{address}\t{hostname}\n" for address in addresses)
    return f"# Kubernetes-managed hosts file.\n{_USUAL}{own}{_added(aliases)}"


def host_network_hosts_file(text: str, *, aliases: tuple[HostAlias, ...] = ()) -> str:
    """Of a pod on the network of the host, whose file says *text*."""
    return f"# Kubernetes-managed hosts file (host network).\n{text}{_added(aliases)}"


def _added(aliases: tuple[HostAlias, ...]) -> str:
    if not aliases:
        return ""
    lines = "".join("\t".join((address, *names)) + "\n" for address, names in aliases)
    return f"\n# Entries added by HostAliases.\n{lines}"
