"""The ledger of claims: devices by group and NUMA node, and who holds them."""

from alignup.align.claims.ledger import MODEL, ClaimLedger
from alignup.align.claims.resource_claims import DeviceId, SliceDevice


def gpu(number: int, *, pool: str = "host-a", driver: str = "gpu.example.com") -> DeviceId:
    return DeviceId(driver, pool, f"gpu-{number}")


def test_a_claim_of_several_containers_is_one_claim():
    ledger = ClaimLedger(held={"u": {"a": {"ml/c": (gpu(0), gpu(1))}, "b": {"ml/c": (gpu(0),), "ml/d": (gpu(2),)}}})

    assert ledger.claims_of("u") == {"ml/c": (gpu(0), gpu(1)), "ml/d": (gpu(2),)}
    assert ledger.claims_of("v") == {}


def test_groups_name_the_driver_the_model_and_several_pools():
    devices = (
        SliceDevice(gpu(0), {MODEL: "H100"}, nodes=1),
        SliceDevice(gpu(1, pool="host-b"), {MODEL: "H100"}),
        SliceDevice(gpu(2, driver="nic.example.com")),
    )
    missing = gpu(9, driver="other.example.com")

    groups = ClaimLedger(devices, {"u": {"a": {"ml/c": (missing, gpu(0))}}}).groups

    assert {name: [str(device.id) for device in group] for name, group in groups.items()} == {
        "gpu.example.com (DRA, H100, pool host-a)": ["gpu.example.com/host-a/gpu-0"],
        "gpu.example.com (DRA, H100, pool host-b)": ["gpu.example.com/host-b/gpu-1"],
        "nic.example.com (DRA)": ["nic.example.com/host-a/gpu-2"],
        "other.example.com (DRA)": ["other.example.com/host-a/gpu-9"],
    }


def test_devices_are_counted_on_each_of_their_numa_nodes_and_only_live_pods_hold_them():
    devices = (SliceDevice(gpu(0), nodes=1), SliceDevice(gpu(1), nodes=3), SliceDevice(gpu(2)))
    ledger = ClaimLedger(devices, {"u": {"a": {"ml/c": (gpu(0),)}}, "ended": {"a": {"ml/d": (gpu(1),)}}})

    assert ledger.count_by_node({"u"}) == {0: {"gpu.example.com (DRA)": (2, 1)}, 1: {"gpu.example.com (DRA)": (1, 1)}}
