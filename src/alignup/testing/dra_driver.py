"""A DRA driver as a process: ``python -m alignup.testing.dra_driver --help``.

It publishes its ResourceSlices after each registration, prints a line, and runs until SIGTERM or SIGINT. Its script has
these actions, besides ``fault`` and ``crash`` (``alignup.testing.script``):

    {"after": 1, "do": "claim", "claim": "gpu", "error": "out of order"}
    {"after": 1, "do": "claim", "claim": "*", "devices": ["gpu-7"], "missing": false}
    {"after": 1, "do": "claim", "claim": "gpu", "method": "NodeUnprepareResources", "error": "busy"}
    {"after": 1, "do": "health", "name": "gpu-0", "status": "UNHEALTHY", "message": "too hot"}
    {"after": 5, "do": "stop"}
    {"after": 5, "do": "start"}
    {"after": 5, "do": "unregister"}
    {"after": 5, "do": "register"}

``claim`` takes the fields of ``alignup.testing.ClaimFault``; without any, the claim works again. ``stop`` breaks every
connection of the kubelet until ``start``; ``unregister`` removes the socket of the registration until ``register``.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from alignup.align.errors import AlignError, ParseError
from alignup.kubernetes.api import ApiClient, Resource, find_access
from alignup.kubernetes.api.errors import AlreadyExistsError, ApiError
from alignup.kubernetes.api.objects import PartialObject
from alignup.testing import script
from alignup.testing.dra_server import GROUP, PREPARE, UNPREPARE, ClaimError, ClaimFault, Document, DraDriver, ReadClaim
from alignup.testing.faulty_server import Fault
from alignup.testing.script import Action, Actions, Arguments, fault_action
from alignup.wire import dra_health_pb2 as health_wire


class _Claim(PartialObject, frozen=True):
    """A ResourceClaim, as far as a driver needs it."""

    status: dict[str, Any] = msgspec.field(default_factory=dict)


CLAIMS = Resource(type=_Claim, kind="ResourceClaim", plural="resourceclaims", group=GROUP, namespaced=True)
SLICES = Resource(type=PartialObject, kind="ResourceSlice", plural="resourceslices", group=GROUP)


def _claim_fault(step: Arguments) -> ClaimFault:
    if step.get("method", PREPARE) not in (PREPARE, UNPREPARE):
        raise ParseError(f"claims have no method {step['method']}; use {PREPARE} or {UNPREPARE}")
    names = step.get("devices", ())
    return ClaimFault(error=step.get("error", ""), missing=step.get("missing", False), devices=tuple(names))


ACTIONS: Actions[DraDriver] = {
    "fault": fault_action(Fault, lambda driver, fault, method: driver.inject(method, fault), required={"method": str}),
    "claim": Action(
        lambda driver, step: driver.inject_claim(step["claim"], _claim_fault(step), method=step.get("method", PREPARE)),
        required={"claim": str},
        optional={"method": str, "error": str, "missing": bool, "devices": list},
        check=_claim_fault,
    ),
    "health": Action(
        lambda driver, step: driver.set_health(step["name"], step["status"], step.get("message", "")),
        required={"name": str, "status": str},
        optional={"message": str},
        check=lambda step: health_wire.HealthStatus.Value(step["status"]),
    ),
    "stop": Action(lambda driver, _: driver.stop()),
    "start": Action(lambda driver, _: driver.start()),
    "unregister": Action(lambda driver, _: driver.unregister()),
    "register": Action(lambda driver, _: driver.register()),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m alignup.testing.dra_driver",
        description="A DRA driver for tests: registers with the kubelet, and prepares the devices of claims.",
    )
    add = parser.add_argument
    add("--name", required=True, help="of the driver, such as gpu.example.com")
    add("--devices", required=True, metavar="LIST", help="counts and NUMA nodes: 4@0,4@1")
    add("--node", required=True, help="name of the node")
    add("--dir", type=Path, default=Path("/var/lib/kubelet"), help="the kubelet's directory (default: %(default)s)")
    add("--kubeconfig", type=Path, metavar="FILE", help="to publish slices and read claims (default: as kubectl)")
    add("--cdi", type=Path, metavar="DIR", help="write CDI files there, such as /var/run/cdi (default: none)")
    add("--print-slices", action="store_true", help="print the ResourceSlices as JSON, and exit")
    add("--script", type=Path, metavar="FILE", help="timed actions (alignup.testing.dra_driver)")
    options = parser.parse_args(arguments)
    try:
        driver = DraDriver(options.name, options.devices, directory=options.dir, node=options.node)
        driver.cdi_directory = options.cdi
        access = None if options.print_slices else find_access(options.kubeconfig)
    except AlignError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if access is None:
        sys.stdout.write(json.dumps({"apiVersion": "v1", "kind": "List", "items": driver.slices()}, indent=2) + "\n")
        return 0
    client = ApiClient(access)

    async def publish_slices(driver: DraDriver) -> None:
        seen = 0
        async with client:
            while True:
                await driver.wait_registered(seen + 1)
                seen = driver.registrations
                try:
                    for document in driver.slices():
                        await _publish(client, document)
                except ApiError as error:
                    sys.stderr.write(f"{error}\n")
                sys.stdout.write(f"registered {driver.name}: {seen}\n")
                sys.stdout.flush()

    driver.read_claim = claim_reader(client)
    return script.main(lambda: driver, ACTIONS, file=options.script, report=publish_slices)


async def _publish(client: ApiClient, document: Document) -> None:
    """Create a ResourceSlice or change it; a kubelet's credentials do not allow to create one by a patch."""
    try:
        await client.create(SLICES, document)
    except AlreadyExistsError:
        await client.apply(SLICES.at(document["metadata"]["name"]), document)


def claim_reader(client: ApiClient) -> ReadClaim:
    """Return a function for ``DraDriver.read_claim`` that asks the API server."""

    async def read_claim(namespace: str, name: str) -> Document | None:
        try:
            claim = await client.find(CLAIMS.at(name, namespace=namespace))
        except ApiError as error:
            raise ClaimError(str(error)) from error
        return {"metadata": {"uid": claim.metadata.uid}, "status": claim.status} if claim else None

    return read_claim


if __name__ == "__main__":
    sys.exit(main())
