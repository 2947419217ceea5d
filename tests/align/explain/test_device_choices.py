"""What the possible choices of devices mean for the distances between them."""

import pytest

from alignup.align.explain import device_choices
from alignup.align.explain.device_choices import connections, explain_choices
from tests.align.test_near_devices import EXAMPLE, GPU, NIC, make_host, make_pod


@pytest.mark.parametrize(
    ("gpus", "nics", "connected", "paired"),
    [
        pytest.param(("gpu-0", "gpu-3"), ("0000:1f:00.0",), True, True, id="a link, and a NIC below the switch"),
        pytest.param(("gpu-0", "gpu-7"), ("0000:1f:00.0",), False, False, id="the NIC is far from the second GPU"),
        pytest.param(("gpu-0",), (), None, None, id="no pairs"),
        pytest.param(("gpu-0", "unknown"), (), None, None, id="a device without an address"),
    ],
)
def test_gpus_are_connected_and_nics_are_paired(gpus, nics, connected, paired):
    distance = connections(EXAMPLE.locality, {GPU: gpus, NIC: nics})

    assert (distance.connected, distance.paired) == (connected, paired)


def explain(*, gpus: int = 0, nics: int = 0) -> tuple[str, ...]:
    decision = make_host(near_devices=False).predict(make_pod(gpus=gpus, nics=nics))
    return explain_choices(EXAMPLE.locality, decision.placements)


def test_choices_that_differ_are_counted_and_what_makes_them_certain_is_named():
    comparison, certain, source = explain(gpus=1, nics=1)

    assert comparison == (
        "container app: 12 of 16 possible choices put GPU and NIC under different root complexes; "
        "best gpu-0 + 0000:1f:00.0 (one switch), worst gpu-4 + 0000:1f:00.0 (SYS)"
    )
    assert certain == (
        "to be certain, request all that is free there (2 example.com/nic, 8 nvidia.com/gpu), or use a ResourceClaim "
        "with matchAttribute: resource.kubernetes.io/pcieRoot; alignup run and the agent choose near devices"
    )
    assert source == "what distance has cost others: docs/locality.md#what-it-costs"


def test_choices_that_are_alike_are_not_counted():
    assert explain(gpus=2) == ("container app: all 4 possible choices are alike, such as gpu-1 + gpu-2 (NV1)",)
    assert explain(gpus=8)[0].startswith("container app: it gets gpu-0 + gpu-1 + ")
    assert explain() == ()


def test_of_very_many_choices_some_are_drawn(monkeypatch):
    monkeypatch.setattr(device_choices, "MAX_COMPARED", 15)

    assert "about " in explain(gpus=1, nics=1)[0]
