"""DNS settings from the host's ``resolv.conf``, and the content of ``/etc/hosts``."""

from dataclasses import replace

import pytest

from alignup.agent.pods import cri_config
from alignup.run.cri.types import DnsConfig
from tests.agent.pods.statuses import pod


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("", DnsConfig(), id="nothing"),
        pytest.param(
            "# nameserver 1.1.1.1\nnameserver 9.9.9.9 # quad\n nameserver\t::1\n",
            DnsConfig(servers=("9.9.9.9", "::1")),
            id="all nameservers count",
        ),
        pytest.param("nameserver\nsortlist x\n", DnsConfig(), id="lines without a value are ignored"),
        pytest.param("search a b\nsearch c. .\n", DnsConfig(searches=("c",)), id="the last search list counts"),
        pytest.param(
            "options ndots:1 rotate\noptions ndots:5\n",
            DnsConfig(options=("ndots:5", "rotate")),
            id="the last value of an option counts",
        ),
    ],
)
def test_resolv_conf(text, found):
    assert cri_config.parse_resolv_conf(text) == found


def test_hosts_file_of_a_pod_with_its_own_network():
    spec = replace(pod(), host_aliases=(("10.1.2.3", ("foo", "foo.example")), ("10.1.2.4", ("bar",))))

    text = cri_config.hosts_file_content(spec, hostname="web", addresses=("10.0.0.7", "fd00::7"))

    assert text == (
        "# Kubernetes-managed hosts file.\n"
        "127.0.0.1\tlocalhost\n"
        "::1\tlocalhost ip6-localhost ip6-loopback\n"
        "fe00::0\tip6-localnet\n"
        "fe00::0\tip6-mcastprefix\n"
        "fe00::1\tip6-allnodes\n"
        "fe00::2\tip6-allrouters\n"
        "10.0.0.7\tweb\n"
        "fd00::7\tweb\n"
        "\n"
        "# Entries added by HostAliases.\n"
        "10.1.2.3\tfoo\tfoo.example\n"
        "10.1.2.4\tbar\n"
    )


def test_hosts_file_on_the_host_network(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n192.0.2.1 node-1\n")

    text = cri_config.hosts_file_content(pod(), hostname="web", addresses=(), host_file=file)

    assert text == "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n192.0.2.1 node-1\n"


def test_a_pod_without_an_address_has_no_hosts_file():
    assert cri_config.hosts_file_content(pod(), hostname="web", addresses=()) is None
