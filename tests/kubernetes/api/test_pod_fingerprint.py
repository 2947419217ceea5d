"""The pod fingerprint: published vectors."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.kubernetes.api.pod_fingerprint import pod_fingerprint

FIVE = [("ns1", "n1"), ("ns1", "n2"), ("ns2", "n1"), ("ns3", "n1"), ("ns3", "n2")]


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (FIVE, "pfp0v001b92008c14168b3a6"),
        (FIVE[::-1], "pfp0v001b92008c14168b3a6"),
        ([], "pfp0v001ef46db3751d8e999"),
        ([("default", "a")], "pfp0v00173ac1f6debaedf3d"),
    ],
)
def test_the_fingerprint_is_that_of_other_exporters(pods, expected):
    assert pod_fingerprint(pods) == expected


def test_pods_of_one_name_in_two_namespaces_differ():
    swapped = [("n1", "ns1") if pod == ("ns1", "n1") else pod for pod in FIVE]

    assert pod_fingerprint(swapped) != pod_fingerprint(FIVE)
    assert pod_fingerprint([("a", "bc")]) != pod_fingerprint([("ab", "c")])


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_pods_never_matters_and_consumers_can_parse_the_result(pods, random):
    fingerprint = pod_fingerprint(pods)

    assert fingerprint == pod_fingerprint(random.sample(pods, len(pods)))
    assert re.fullmatch("pfp0v001[0-9a-f]{16}", fingerprint)
