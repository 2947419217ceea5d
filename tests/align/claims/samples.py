"""Claims and devices for tests."""

from collections.abc import Sequence

from alignup.align import bits
from alignup.align.claims.allocation import Matches
from alignup.align.claims.resource_claims import AttributeValue, Claim, ClaimRequest, DeviceId, SliceDevice

DRIVER = "gpu.example.com"


def device(name: str, *, node: int | None = None, pool: str = "node-a", **attributes: AttributeValue) -> SliceDevice:
    """A device whose attributes are the driver's own."""
    qualified = {f"{DRIVER}/{key}": value for key, value in attributes.items()}
    return SliceDevice(DeviceId(DRIVER, pool, name), qualified, nodes=None if node is None else bits.of([node]))


def claim(*requests: ClaimRequest | Sequence[ClaimRequest], name: str = "c", **fields) -> Claim:
    """A claim; a request that is a sequence has these alternatives."""
    alternatives = [(request,) if isinstance(request, ClaimRequest) else tuple(request) for request in requests]
    return Claim(name=name, requests=tuple(alternatives), **fields)


def any_device(_: ClaimRequest, __: SliceDevice) -> bool:
    return True


def by_model(models: dict[str, str]) -> Matches:
    """A request gets only devices of its model."""
    return lambda request, each: models.get(request.name) in (None, each.attributes.get(f"{DRIVER}/model"))
