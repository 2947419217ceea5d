"""DNS settings and ``/etc/hosts`` of pods.

DNS settings are the host's, because there is no cluster DNS, plus the pod's ``dnsConfig``. The content of
``/etc/hosts`` is the kubelet's, byte for byte.
"""

from collections.abc import Iterable
from pathlib import Path

from alignup.enforce.cri.types import DnsConfig
from alignup.kube.podspec.types import PodSpec

MAX_NAMESERVERS, MAX_SEARCHES, MAX_SEARCH_CHARACTERS = 3, 32, 2048  #: the kubelet's limits

_HOSTS_HEADER = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


def parse_resolv_conf(text: str) -> DnsConfig:
    """Read a ``resolv.conf``: every server, the last search list, the last value of each option."""
    servers: list[str] = []
    searches: tuple[str, ...] = ()
    options: list[str] = []
    for line in text.splitlines():
        keyword, *values = line.split() or [""]
        if keyword == "nameserver":
            servers += values[:1]
        elif keyword == "search":
            searches = tuple(one.removesuffix(".") for one in values if one != ".")
        elif keyword == "options":
            options += values
    return DnsConfig(servers=tuple(servers), searches=searches, options=_last_of_each(options))


def pod_dns(spec: PodSpec, host: DnsConfig) -> DnsConfig | None:
    """The DNS settings of a pod; ``None``: the runtime copies the host's, whatever they are then."""
    own_only = spec.dns_policy == "None"
    if not own_only and not (spec.nameservers or spec.searches or spec.dns_options):
        return None
    base = DnsConfig() if own_only else host
    searches = list(dict.fromkeys((*base.searches, *spec.searches)))[:MAX_SEARCHES]
    while len(" ".join(searches)) > MAX_SEARCH_CHARACTERS:
        searches.pop()
    return DnsConfig(
        servers=tuple(dict.fromkeys((*base.servers, *spec.nameservers)))[:MAX_NAMESERVERS],
        searches=tuple(searches),
        options=_last_of_each((*base.options, *spec.dns_options)),
    )


def hosts_file_content(
    spec: PodSpec, *, hostname: str, addresses: tuple[str, ...], host_file: Path | None = None
) -> str | None:
    """The content of ``/etc/hosts``; *host_file* is the host's file, for a pod on the host network.

    ``None``: the pod has no address yet, so it gets no file.
    """
    aliases = "".join("\t".join((address, *names)) + "\n" for address, names in spec.host_aliases)
    if aliases:
        aliases = f"\n# Entries added by HostAliases.\n{aliases}"
    if host_file is not None:
        text = host_file.read_text("utf-8", "replace")
        return f"# Kubernetes-managed hosts file (host network).\n{text}{aliases}"
    if not addresses:
        return None
    own = "".join(f"{address}\t{hostname}\n" for address in addresses)
    return f"# Kubernetes-managed hosts file.\n{_HOSTS_HEADER}{own}{aliases}"


def _last_of_each(options: Iterable[str]) -> tuple[str, ...]:
    return tuple({option.partition(":")[0]: option for option in options}.values())
