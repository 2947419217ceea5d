"""The DRA driver with a client in place of a kubelet: registration, claims, health, slices and faults."""

import asyncio
import json
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.kubernetes.plugins.unix_grpc import StatusError
from alignup.testing import ClaimFault, DraDevice, DraDriver, Fault
from tests.short_paths import short_directory
from tests.testing.dra_driver_client import DraDriverClient, make_claim

pytestmark = pytest.mark.anyio

GPU = "gpu.example.com"
PREPARE = "NodePrepareResources"
RECORDINGS = Path(__file__).parents[1] / "kubernetes" / "data" / "dra"
RECORDED = ("resource_claim", "pod_resources")


@asynccontextmanager
async def registered(directory, devices="2@0,2@1", node="worker"):
    """Yield a driver and the client that has registered it."""
    client = DraDriverClient(directory)
    async with DraDriver(GPU, devices, directory=directory, node=node) as driver:
        await client.register()
        yield driver, client


def put(driver, name, *devices, **fields):
    claim = make_claim(name, *devices, **fields)
    driver.put_claim(claim)
    return claim


def names(devices):
    return [device.device_name for device in devices]


class TestRegistration:
    async def test_the_kubelet_learns_name_endpoint_and_services(self, directory):
        async with registered(directory) as (driver, client):
            await driver.wait_registered()

            assert (client.info.type, client.info.name) == ("DRAPlugin", GPU)
            assert client.info.endpoint == str(directory / "plugins" / GPU / "dra.sock")
            assert list(client.info.supported_versions) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
            assert (driver.registrations, driver.rejections) == (1, [])
        assert [path for path in directory.rglob("*") if path.is_socket()] == []

    async def test_a_rejection_is_recorded(self, directory):
        async with registered(directory) as (driver, client):
            driver.versions = ("v9.DRAPlugin",)
            await client.register(error="no version in common")
            await driver.wait_rejected()

            assert list(client.info.supported_versions) == ["v9.DRAPlugin"]
            assert (driver.registrations, driver.rejections) == (1, ["no version in common"])

    async def test_a_registration_can_fail_and_be_withdrawn(self, directory):
        async with registered(directory) as (driver, client):
            driver.inject("GetInfo", Fault(error="not now", times=1))
            with pytest.raises(StatusError, match="not now"):
                await client.register()
            await client.register()
            await driver.unregister()

            assert driver.socket.exists()
            assert not driver.registration_socket.exists()
            assert driver.registrations == 2


class TestClaims:
    async def test_allocated_devices_are_prepared(self, directory):
        async with registered(directory) as (driver, client):
            claim = put(driver, "pair", "gpu-1", "gpu-2", request="gpus/large")

            prepared = await client.prepare(claim)

            assert [str(device) for device in prepared["pair"]] == [
                f'request_names: "gpus"\npool_name: "worker"\ndevice_name: "{name}"\n' for name in ("gpu-1", "gpu-2")
            ]

    async def test_results_of_other_drivers_are_ignored(self, directory):
        async with registered(directory) as (driver, client):
            claim = make_claim("nic", "nic-0", driver="nic.example.com")
            driver.put_claim(claim)

            assert await client.prepare(claim) == {"nic": []}

    async def test_preparing_twice_gives_the_same_answer(self, directory):
        async with registered(directory) as (driver, client):
            claim = put(driver, "a", "gpu-0")
            first = await client.prepare(claim)
            put(driver, "a", "gpu-3")

            assert await client.prepare(claim) == first
            assert driver.claim_calls(PREPARE, "uid-of-a") == 2
            assert await client.unprepare(claim) == await client.unprepare(claim) == {"a": ""}
            assert driver.claim_calls("NodeUnprepareResources", "uid-of-a") == 2
            assert driver.prepared == {}

    @pytest.mark.parametrize(
        ("claim", "text"),
        [
            pytest.param(None, "ResourceClaim default/a does not exist", id="no claim"),
            pytest.param(make_claim("a", "gpu-0", uid="new"), "has the uid new, not uid-of-a", id="another claim"),
            pytest.param({**make_claim("a"), "status": {}}, "is not allocated", id="no allocation"),
            pytest.param(make_claim("a", "gpu-9"), "the unknown device worker/gpu-9", id="an unknown device"),
            pytest.param(make_claim("a", "gpu-0", pool="x"), "the unknown device x/gpu-0", id="an unknown pool"),
            pytest.param(
                make_claim("a", "gpu-3"), "gpu-3, which the claim with uid uid-of-b holds", id="a held device"
            ),
        ],
    )
    async def test_a_wrong_claim_is_an_error_in_the_response(self, directory, claim, text):
        async with registered(directory) as (driver, client):
            if claim is not None:
                driver.put_claim(claim)
            await client.prepare(put(driver, "b", "gpu-3"))

            prepared = await client.prepare(make_claim("a"), make_claim("b"))

            assert text in prepared["a"]
            assert names(prepared["b"]) == ["gpu-3"]

    async def test_shared_devices_have_several_holders(self, directory):
        async with registered(directory) as (driver, client):
            claims = [put(driver, name, "gpu-0", shareID=f"share-of-{name}") for name in "ab"]

            prepared = await client.prepare(*claims)

            shares = {name: [device.share_id for device in devices] for name, devices in prepared.items()}
            assert shares == {"a": ["share-of-a"], "b": ["share-of-b"]}

    @given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=12))
    async def test_a_device_never_has_two_holders(self, steps):
        allocations = {"a": ("gpu-0", "gpu-1"), "b": ("gpu-1", "gpu-2"), "c": ("gpu-3",)}
        expected: dict[str, list[str]] = {}
        with short_directory() as directory:
            async with registered(directory) as (driver, client):
                claims = {name: put(driver, name, *devices) for name, devices in allocations.items()}
                for prepare, name in steps:
                    if not prepare:
                        assert await client.unprepare(claims[name]) == {name: ""}
                        expected.pop(name, None)
                        continue
                    answer = (await client.prepare(claims[name]))[name]
                    taken = {device for other, held in expected.items() if other != name for device in held}
                    if taken.isdisjoint(allocations[name]):
                        expected[name] = names(answer)
                        assert expected[name] == list(allocations[name])
                    else:
                        assert "holds" in answer
                prepared = {uid: names(claim.devices) for uid, claim in driver.prepared.items()}
                assert prepared == {f"uid-of-{name}": devices for name, devices in expected.items()}

    async def test_cdi_files_are_written_and_removed(self, directory):
        async with registered(directory, [DraDevice(name="gpu-0", cdi_ids=("vendor.com/gpu=all",))]) as (
            driver,
            client,
        ):
            driver.cdi_directory = directory / "cdi"
            claim = put(driver, "a", "gpu-0")
            (device,) = (await client.prepare(claim))["a"]
            (path,) = driver.cdi_directory.iterdir()
            document = json.loads(path.read_text())
            await client.unprepare(claim)

            assert list(device.cdi_device_ids) == ["vendor.com/gpu=all", f"{GPU}/device=uid-of-a-gpu-0"]
            edits = {"name": "uid-of-a-gpu-0", "containerEdits": {"env": ["DRA_GPU_0=gpu-0"]}}
            assert (document["kind"], document["devices"]) == (f"{GPU}/device", [edits])
            assert not path.exists()

    @pytest.mark.parametrize("name", ["claimed", "extended", "implicit"])
    async def test_a_real_claim_is_prepared_as_a_real_kubelet_listed_it(self, directory, name):
        claim, response = (json.loads((RECORDINGS / f"{kind}_{name}.json").read_text()) for kind in RECORDED)
        async with registered(directory, "1@0,1@1,1@2,1@3", node="node-a") as (driver, client):
            driver.put_claim(claim)

            ((claim_name, prepared),) = (await client.prepare(claim)).items()

        (resources,) = response["pod_resources"][0]["containers"][0]["dynamic_resources"]
        listed = [(device["pool_name"], device["device_name"]) for device in resources["claim_resources"]]
        assert resources["claim_name"] == claim_name
        assert listed == [(device.pool_name, device.device_name) for device in prepared]


class TestFaults:
    async def test_a_call_fails_as_a_whole(self, directory):
        async with registered(directory) as (driver, client):
            claim = put(driver, "a", "gpu-0")
            driver.inject(PREPARE, Fault(error="no firmware", code="UNAVAILABLE", times=1))

            with pytest.raises(StatusError, match="no firmware") as failed:
                await client.prepare(claim)

            assert failed.value.code is grpc.StatusCode.UNAVAILABLE
            assert names((await client.prepare(claim))["a"]) == ["gpu-0"]

    async def test_a_claim_fails_alone(self, directory):
        async with registered(directory) as (driver, client):
            claims = [put(driver, "a", "gpu-0"), put(driver, "b", "gpu-1")]
            driver.inject_claim("a", ClaimFault(error="too hot"))

            failed = await client.prepare(*claims)
            driver.inject_claim("a", ClaimFault())
            prepared = await client.prepare(*claims)

            assert (failed["a"], names(failed["b"])) == ("too hot", ["gpu-1"])
            assert names(prepared["a"]) == ["gpu-0"]

    async def test_a_response_may_lack_a_claim_or_name_other_devices(self, directory):
        async with registered(directory) as (driver, client):
            claims = [put(driver, "a", "gpu-0"), put(driver, "b", "gpu-1"), put(driver, "c", "gpu-2")]
            driver.inject_claim("uid-of-a", ClaimFault(missing=True))
            driver.inject_claim("*", ClaimFault(devices=("gpu-8", "gpu-9")))
            driver.inject_claim("c", ClaimFault())

            prepared = await client.prepare(*claims)

            assert {name: names(devices) for name, devices in prepared.items()} == {
                "b": ["gpu-8", "gpu-9"],
                "c": ["gpu-2"],
            }

    async def test_a_claim_that_cannot_be_unprepared_stays_prepared(self, directory):
        async with registered(directory) as (driver, client):
            claim = put(driver, "a", "gpu-0")
            await client.prepare(claim)
            driver.inject_claim("a", ClaimFault(error="busy"), method="NodeUnprepareResources")

            assert await client.unprepare(claim) == {"a": "busy"}
            assert list(driver.prepared) == ["uid-of-a"]

    async def test_a_call_hangs_until_it_is_released(self, directory):
        async with registered(directory) as (driver, client):
            claim = put(driver, "a", "gpu-0")
            driver.inject(PREPARE, Fault(hang=True))
            pending = asyncio.create_task(client.prepare(claim))
            await driver.wait_called(PREPARE)
            prepared_before = dict(driver.prepared)

            driver.inject(PREPARE, Fault())

            assert names((await pending)["a"]) == ["gpu-0"]
            assert prepared_before == {}

    async def test_a_stopped_driver_stays_registered_and_keeps_its_claims(self, directory):
        async with registered(directory) as (driver, client):
            claim = put(driver, "a", "gpu-0")
            await client.prepare(claim)
            driver.inject("NodeUnprepareResources", Fault(hang=True))
            pending = asyncio.create_task(client.unprepare(claim))
            await driver.wait_called("NodeUnprepareResources")

            await driver.stop()

            with pytest.raises(StatusError) as broken:
                await pending
            with pytest.raises(StatusError) as refused:
                await client.prepare(claim)
            assert {broken.value.code, refused.value.code} == {grpc.StatusCode.UNAVAILABLE}
            assert driver.registration_socket.exists()
            await driver.start()
            assert list(driver.prepared) == ["uid-of-a"]
            assert names((await client.prepare(claim))["a"]) == ["gpu-0"]


async def test_health_is_streamed(directory):
    async with registered(directory) as (driver, client):
        driver.set_health("gpu-0", "HEALTHY")
        async with aclosing(client.watch_health()) as changes:
            first = await anext(changes)
            driver.set_health("gpu-1", "UNHEALTHY", "too hot")
            second = await anext(changes)

        assert first == {"gpu-0": ("HEALTHY", "")}
        assert second == {"gpu-0": ("HEALTHY", ""), "gpu-1": ("UNHEALTHY", "too hot")}
        with pytest.raises(ValueError, match="HOT"):
            driver.set_health("gpu-0", "HOT")


async def test_an_unregistered_driver_still_streams_health(directory):
    async with registered(directory) as (driver, client), aclosing(client.watch_health()) as changes:
        assert await anext(changes) == {}
        await driver.unregister()
        driver.set_health("gpu-0", "HEALTHY")
        assert await anext(changes) == {"gpu-0": ("HEALTHY", "")}


class TestSlices:
    def test_a_device_has_attributes_and_capacity(self, tmp_path):
        device = DraDevice(
            name="gpu-0",
            numa_nodes=(1,),
            pcie_root="pci0000:40",
            pci_bus_id="0000:41:00.0",
            attributes={"model": "x100", "index": 3, "shared": False, "driverVersion": {"version": "1.2.3"}},
            capacity={"memory": "80Gi"},
        )

        (slice_,) = DraDriver(GPU, [device], directory=tmp_path, node="worker").slices()

        assert slice_["metadata"] == {"name": "worker-gpu.example.com-0"}
        pool = {"name": "worker", "generation": 1, "resourceSliceCount": 1}
        entry = {
            "name": "gpu-0",
            "attributes": {
                "model": {"string": "x100"},
                "index": {"int": 3},
                "shared": {"bool": False},
                "driverVersion": {"version": "1.2.3"},
                "resource.kubernetes.io/numaNode": {"int": 1},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:40"},
                "resource.kubernetes.io/pciBusID": {"string": "0000:41:00.0"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        assert slice_["spec"] == {"driver": GPU, "pool": pool, "nodeName": "worker", "devices": [entry]}

    def test_a_list_gives_numa_nodes(self, tmp_path):
        (slice_,) = DraDriver(GPU, "1@1,1@0+2,1", directory=tmp_path, node="worker").slices()

        key = "resource.kubernetes.io/numaNode"
        assert slice_["spec"]["devices"] == [
            {"name": "gpu-0", "attributes": {key: {"int": 1}}},
            {"name": "gpu-1", "attributes": {key: {"ints": [0, 2]}}},
            {"name": "gpu-2"},
        ]

    @given(st.integers(0, 400))
    def test_every_device_is_in_one_slice(self, tmp_path_factory, count):
        driver = DraDriver(GPU, f"{count}@0", directory=tmp_path_factory.getbasetemp(), node="worker")

        slices = driver.slices(generation=7)

        assert [entry["name"] for part in slices for entry in part["spec"]["devices"]] == list(driver.devices)
        assert all(len(part["spec"]["devices"]) <= 128 for part in slices)
        assert len({part["metadata"]["name"] for part in slices}) == len(slices)
        pools = [part["spec"]["pool"] for part in slices]
        assert pools == [{"name": "worker", "generation": 7, "resourceSliceCount": len(slices)}] * len(slices)
