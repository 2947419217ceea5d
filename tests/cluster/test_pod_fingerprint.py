"""The pod fingerprint: published vectors."""

import pytest

from alignup.cluster.pod_fingerprint import pod_fingerprint

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
