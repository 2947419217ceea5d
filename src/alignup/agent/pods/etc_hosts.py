"""The content of a pod's ``/etc/hosts``, byte for byte as the kubelet writes it."""

from pathlib import Path

from alignup.kube.podspec.types import PodSpec

_HEADER = """\
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
    """The content of the file; *host_file* is the host's file, for a pod on the host network.

    ``None``: the pod has no address yet, so it gets no file.
    """
    if host_file is not None:
        text = host_file.read_text("utf-8", "replace")
        return f"# Kubernetes-managed hosts file (host network).\n{text}{_aliases(spec)}"
    if not addresses:
        return None
    own = "".join(f"{address}\t{hostname}\n" for address in addresses)
    return f"# Kubernetes-managed hosts file.\n{_HEADER}{own}{_aliases(spec)}"


def _aliases(spec: PodSpec) -> str:
    if not spec.host_aliases:
        return ""
    lines = "".join("\t".join((address, *names)) + "\n" for address, names in spec.host_aliases)
    return f"\n# Entries added by HostAliases.\n{lines}"
