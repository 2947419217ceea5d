"""A client of a DRA driver, as a kubelet is: it registers the driver and calls it, and admits no pods."""

from pathlib import Path

from alignup.kubernetes.plugins import unix_grpc
from alignup.wire import dra_health_pb2 as health_wire
from alignup.wire import dra_pb2 as wire
from alignup.wire import plugin_registration_pb2 as registration_wire

_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


class DraDriverClient:
    def __init__(self, directory):
        self.directory = directory
        self.info = registration_wire.PluginInfo()  #: what the driver has told

    async def register(self, *, error=""):
        """Register the only driver, or reject it with *error*."""
        (path,) = [path for path in (self.directory / "plugins_registry").iterdir() if not path.name.startswith(".")]
        self.info = await self._call(
            path,
            "/pluginregistration.Registration/GetInfo",
            registration_wire.InfoRequest(),
            registration_wire.PluginInfo,
        )
        status = registration_wire.RegistrationStatus(plugin_registered=not error, error=error)
        method = "/pluginregistration.Registration/NotifyRegistrationStatus"
        await self._call(path, method, status, registration_wire.RegistrationStatusResponse)

    async def prepare(self, *documents):
        """Return the devices of each ResourceClaim by name, or its error."""
        request = wire.NodePrepareResourcesRequest(claims=map(claim_reference, documents))
        method, kind = f"{_SERVICE}/NodePrepareResources", wire.NodePrepareResourcesResponse
        response = await self._call(Path(self.info.endpoint), method, request, kind)
        names = {document["metadata"]["uid"]: document["metadata"]["name"] for document in documents}
        return {names[uid]: claim.error or list(claim.devices) for uid, claim in response.claims.items()}

    async def unprepare(self, *documents):
        """Return the error of each ResourceClaim by name, which is empty if there is none."""
        request = wire.NodeUnprepareResourcesRequest(claims=map(claim_reference, documents))
        method, kind = f"{_SERVICE}/NodeUnprepareResources", wire.NodeUnprepareResourcesResponse
        response = await self._call(Path(self.info.endpoint), method, request, kind)
        names = {document["metadata"]["uid"]: document["metadata"]["name"] for document in documents}
        return {names[uid]: claim.error for uid, claim in response.claims.items()}

    async def watch_health(self):
        """Yield the health of devices by name, and what the driver says about it."""
        async with unix_grpc.channel(Path(self.info.endpoint)) as line:
            messages = unix_grpc.stream(
                line,
                "/v1alpha1.DRAResourceHealth/NodeWatchResources",
                health_wire.NodeWatchResourcesRequest(),
                response=health_wire.NodeWatchResourcesResponse,
                error=_error,
            )
            async for message in messages:
                yield {
                    device.device.device_name: (health_wire.HealthStatus.Name(device.health), device.message)
                    for device in message.devices
                }

    async def _call(self, path, method, request, kind):
        async with unix_grpc.channel(path) as line:
            return await unix_grpc.call(
                line, method, request, response=kind, seconds=60, error=_error, wait_for_ready=False
            )


def _error(code, details):
    return unix_grpc.StatusError(details, code=code)


def claim_reference(document):
    metadata = document["metadata"]
    return wire.Claim(namespace=metadata["namespace"], uid=metadata["uid"], name=metadata["name"])


def make_claim(name, *devices, driver="gpu.example.com", pool="worker", uid="", request="gpu", **fields):
    """Return a ResourceClaim that was allocated *devices*; ``fields`` are of each result."""
    results = [{"request": request, "driver": driver, "pool": pool, "device": device, **fields} for device in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": uid or f"uid-of-{name}"},
        "spec": {"devices": {"requests": [{"name": request, "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }
