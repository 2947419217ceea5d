"""Whether every choice of devices that a kubelet may make satisfies a demand."""

import pytest

from alignup.align import possible_locality
from alignup.align.devices.demanded_locality import parse_demands
from alignup.align.possible_locality import UnmetLocality, find_unmet_locality
from tests.align import test_prediction
from tests.align.test_near_devices import EXAMPLE, GPU, make_host, make_pod


def unmet(demand: str, *, gpus: int = 2, nics: int = 0, others=(), unsettled=()) -> UnmetLocality | None:
    placements = make_host(near_devices=False).predict(make_pod(gpus=gpus, nics=nics)).placements
    return find_unmet_locality(
        parse_demands(demand), placements, EXAMPLE.locality, others={GPU: others}, unsettled={GPU: unsettled}
    )


@pytest.mark.parametrize(
    ("demand", "asked", "detail"),
    [
        pytest.param("nvlink", {}, "", id="every pair that may be chosen is linked"),
        pytest.param("same-switch", {"gpus": 1}, "", id="any single device"),
        pytest.param("same-root=example.com/nic", {"nics": 1}, "", id="devices that it does not name"),
        pytest.param(
            "same-switch", {"nics": 1}, "0000:1f:00.0 has no GPU below its PCIe switch", id="one choice does not"
        ),
        pytest.param(
            "nvlink",
            {"unsettled": [["gpu-0", "gpu-4"]]},
            "no NVLink connects gpu-0 and gpu-1",
            id="it may get devices that other pods did not get",
        ),
        pytest.param(
            "spread",
            {"others": ["gpu-4"]},
            "gpu-4 shares its root complex with gpu-4 of another pod",
            id="each device counts by itself",
        ),
    ],
)
def test_all_possible_choices_count(demand, asked, detail):
    unmet_locality = unmet(demand, **asked)

    assert (unmet_locality.detail if unmet_locality else "") == (f"container app: {detail}" if detail else "")
    assert unmet_locality is None or unmet_locality.reason == f"the kubelet may choose devices that are not {demand}"


def test_any_choice_among_near_devices_is_near():
    host = test_prediction.host(test_prediction.EIGHT, "best-effort")
    placements = host.predict(test_prediction.pod(4)).placements

    assert not find_unmet_locality(
        parse_demands("same-root"), placements, host.machine.locality, others={}, unsettled={}
    )


def test_too_many_choices_are_unknown(monkeypatch):
    monkeypatch.setattr(possible_locality, "MAX_CHECKED", 1)

    unmet_locality = unmet("same-switch")

    assert unmet_locality is not None
    assert not unmet_locality.known
    assert unmet_locality.reason == "it is unknown whether the devices that the kubelet may choose are same-switch"
    assert unmet_locality.detail == "container app: there are more than 1 possible choices"
