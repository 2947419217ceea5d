"""Usable devices of slices, and the claims of a pod."""

from dataclasses import replace
from itertools import count

import pytest

from alignup.align.claims.resource_claims import (
    AllocatedDevice,
    Claim,
    ClaimObjects,
    DeviceClass,
    Slice,
    usable_devices,
)
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, PodClaim, Resources
from tests.align.claims.samples import DRIVER, claim, device

IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
NUMBERS = count()  #: of slices, whose names differ
FAST = DeviceClass("fast", extended_resource="example.com/gpu")


def part(*names: str, generation: int = 1, count: int = 1, pool: str = "node-a") -> Slice:
    devices = tuple(device(name, pool=pool) for name in names)
    return Slice(f"s{next(NUMBERS)}", DRIVER, pool, generation, count, devices=devices)


def shown(slices: list[Slice]) -> tuple[list[str], tuple[str, ...]]:
    devices, problems = usable_devices(slices)
    return [each.id.device for each in devices], problems


def pod_with(**requests: int) -> Pod:
    names = {"gpu": "example.com/gpu", "implicit": IMPLICIT, "nic": "example.com/nic"}
    amounts = {names[name]: Quantity.of(count) for name, count in requests.items()}
    return Pod(name="p", uid="u", containers=(Container("app", Resources(amounts, amounts)),))


class TestUsableDevices:
    def test_all_slices_of_a_pool_count(self):
        assert shown([part("a", count=2), part("b", count=2), part("c", pool="other")]) == (["a", "b", "c"], ())

    def test_an_older_generation_does_not_count(self):
        assert shown([part("old", count=1), part("new", generation=2)]) == (["new"], ())

    def test_an_incomplete_pool_is_not_used(self):
        assert shown([part("a", count=2)]) == ([], (f"pool node-a of driver {DRIVER} has 1 of its 2 slices",))

    def test_a_pool_with_a_device_twice_is_not_used(self):
        assert shown([part("a", count=2), part("a", count=2)]) == (
            [],
            (f"pool node-a of driver {DRIVER} has device a twice",),
        )


class TestClassResources:
    def test_resources_that_a_class_offers_are_named(self):
        objects = ClaimObjects({"fast": FAST})

        assert objects.with_class_resources(pod_with(gpu=1, nic=1)).class_resources == ("example.com/gpu",)
        assert objects.with_class_resources(pod_with(nic=1)).class_resources == ()

    def test_a_class_by_its_own_name_needs_not_be_known(self):
        assert ClaimObjects().with_class_resources(pod_with(implicit=1)).class_resources == (IMPLICIT,)

    def test_of_several_classes_the_first_by_name_offers_a_resource(self):
        objects = ClaimObjects({"fast": FAST, "a": replace(FAST, name="a")})

        assert objects.class_of("example.com/gpu") == replace(FAST, name="a")
        assert objects.class_of(IMPLICIT) is None


class TestClaimsOfAPod:
    TEMPLATE = claim(name="template")

    def claims(self, pod: Pod, capacity: dict[str, int] | None = None, **objects) -> list[tuple[str, Claim | str]]:
        return list(ClaimObjects(**objects).claims_of(pod, capacity=capacity or {}))

    def test_a_claim_is_found_by_its_name(self):
        known = claim(name="mine")
        pod = replace(pod_with(), claims=(PodClaim("gpu", "mine"), PodClaim("nic", "gone")))

        assert self.claims(pod, claims={("default", "mine"): known}) == [
            ("gpu", known),
            ("nic", "ResourceClaim default/gone is not known"),
        ]

    def test_a_template_stands_for_a_claim_that_is_not_made_yet(self):
        pod = replace(pod_with(), claims=(PodClaim("gpu", template="template"), PodClaim("nic", template="none")))

        assert self.claims(pod, templates={("default", "template"): self.TEMPLATE}) == [
            ("gpu", replace(self.TEMPLATE, name="p-gpu")),
            ("nic", "ResourceClaimTemplate default/none is not known"),
        ]

    def test_a_claim_of_nothing_is_said_to_be_one(self):
        pod = replace(pod_with(), claims=(PodClaim("gpu"),))

        assert self.claims(pod) == [("gpu", "it names neither a ResourceClaim nor a template")]

    def test_extended_resources_get_a_claim_where_no_plugin_has_them(self):
        objects = ClaimObjects({"fast": FAST})
        pod = objects.with_class_resources(pod_with(gpu=2))

        ((name, made),) = objects.claims_of(pod, capacity={})
        assert name == "example.com/gpu"
        assert isinstance(made, Claim)
        assert [(request.device_class, request.count) for (request,) in made.requests] == [("fast", 2)]
        assert not list(objects.claims_of(pod, capacity={"example.com/gpu": 8}))
        assert not list(objects.claims_of(objects.with_class_resources(pod_with(gpu=0)), capacity={}))

    def test_a_bound_pod_has_the_claim_of_its_status(self):
        known = claim(name="p-extended", allocated=(AllocatedDevice("r", device("a").id),))
        pod = replace(pod_with(gpu=1), claimed_requests=(("app", "example.com/gpu"),), extended_claim="p-extended")

        assert self.claims(pod, claims={("default", "p-extended"): known}) == [("example.com/gpu", known)]
        assert self.claims(pod) == [("example.com/gpu", "ResourceClaim default/p-extended is not known")]

    def test_an_unknown_class_is_said_to_be_one(self):
        pod = ClaimObjects().with_class_resources(pod_with(implicit=1))

        assert self.claims(pod) == [(IMPLICIT, f"no DeviceClass is known that offers {IMPLICIT}")]


@pytest.mark.parametrize("allocated", [None, (AllocatedDevice("gpu", device("a").id),)])
def test_devices_of_claims_are_taken(allocated):
    objects = ClaimObjects(claims={("default", "c"): claim(allocated=allocated)})

    assert objects.taken() == ({device("a").id} if allocated else set())
