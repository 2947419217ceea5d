"""DNS settings of pods: the host's, because there is no cluster DNS, plus the pod's ``dnsConfig``."""

from collections.abc import Iterable

from alignup.enforce.cri.types import DnsConfig
from alignup.kube.podspec.types import PodSpec

MAX_NAMESERVERS, MAX_SEARCHES, MAX_SEARCH_CHARACTERS = 3, 32, 2048  #: the kubelet's limits


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
    return DnsConfig(
        servers=tuple(dict.fromkeys((*base.servers, *spec.nameservers)))[:MAX_NAMESERVERS],
        searches=_within_limits(dict.fromkeys((*base.searches, *spec.searches))),
        options=_last_of_each((*base.options, *spec.dns_options)),
    )


def _within_limits(searches: Iterable[str]) -> tuple[str, ...]:
    kept = list(searches)[:MAX_SEARCHES]
    while len(" ".join(kept)) > MAX_SEARCH_CHARACTERS:
        kept.pop()
    return tuple(kept)


def _last_of_each(options: Iterable[str]) -> tuple[str, ...]:
    return tuple({option.partition(":")[0]: option for option in options}.values())
