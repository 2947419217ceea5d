"""How a pod looks up names. There is no cluster to ask first, so it is as the host does, with what the pod adds."""

from collections.abc import Iterable

from alignup.enforce.cri.types import DnsConfig
from alignup.kube.podspec.types import PodSpec

MAX_NAMESERVERS, MAX_SEARCHES, MAX_SEARCH_CHARACTERS = 3, 32, 2048  #: as the kubelet has them


def parse_resolv_conf(text: str) -> DnsConfig:
    """What a ``resolv.conf`` says: all its servers, the last of its search lists, the last of each option."""
    servers: list[str] = []
    searches: tuple[str, ...] = ()
    options: list[str] = []
    for line in text.splitlines():
        word, *others = line.split() or [""]
        if word == "nameserver":
            servers += others[:1]
        elif word == "search":
            searches = tuple(one.removesuffix(".") for one in others if one != ".")
        elif word == "options":
            options += others
    return DnsConfig(servers=tuple(servers), searches=searches, options=_last_of_each(options))


def pod_dns(spec: PodSpec, host: DnsConfig) -> DnsConfig | None:
    """How a pod on *host* looks up names; ``None``: just as the host does, whatever becomes of it there."""
    alone = spec.dns_policy == "None"
    if not alone and not (spec.nameservers or spec.searches or spec.dns_options):
        return None
    base = DnsConfig() if alone else host
    return DnsConfig(
        servers=tuple(dict.fromkeys((*base.servers, *spec.nameservers)))[:MAX_NAMESERVERS],
        searches=_fitting(dict.fromkeys((*base.searches, *spec.searches))),
        options=_last_of_each((*base.options, *spec.dns_options)),
    )


def _fitting(searches: Iterable[str]) -> tuple[str, ...]:
    """As many as a resolver takes."""
    fitting = list(searches)[:MAX_SEARCHES]
    while len(" ".join(fitting)) > MAX_SEARCH_CHARACTERS:
        fitting.pop()
    return tuple(fitting)


def _last_of_each(options: Iterable[str]) -> tuple[str, ...]:
    return tuple({option.partition(":")[0]: option for option in options}.values())
