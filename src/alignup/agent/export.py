"""What stands, as the state files of a kubelet with the same configuration, which can go on from there; and back."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from alignup.agent.pending import Grants
from alignup.agent.recovery import recover
from alignup.agent.run import Options
from alignup.agent.standing import Standing
from alignup.align.errors import StateError
from alignup.align.settings import FeatureGates
from alignup.state import export as states
from alignup.state import kubelet_dir
from alignup.state.lock import lock
from alignup.state.store import Store


def export(options: Options, directory: Path) -> Iterator[str]:
    """Write the files to *directory*, and say what was written; the agent must not run meanwhile."""
    store = Store(options.root)
    with lock(options.root):
        recovered = recover(store, options.host, terms=options.terms, now=options.clock.now())
    if recovered.problems:
        raise StateError("; ".join(recovered.problems))
    found = states.export(recovered.standing.host, responses=responses(recovered.standing))
    for path in kubelet_dir.write_dir(directory, found, gates=options.host.settings.gates):
        yield f"wrote {path}"
    for gap in found.gaps:
        yield f"note: {gap}"
    if waiting := len(recovered.standing.line.pods):
        yield f"note: {waiting} pods wait; a kubelet knows nothing of them"


def responses(standing: Standing) -> dict[tuple[str, str, str], bytes]:
    """What plugins gave with devices, as the kubelet keeps it; by pod, container and resource."""
    from alignup.plugins.grants import Grant  # noqa: PLC0415 - gRPC is for whoever needs it

    return {
        (uid, container, resource): Grant.of_document(given).message().SerializeToString(deterministic=True)
        for uid, known in standing.held.items()
        for container, own in known.grants.items()
        for resource, given in own.items()
    }


def granted(directory: Path, gates: FeatureGates) -> Mapping[str, Grants]:
    """What plugins gave with devices, as a kubelet kept it in *directory*; by uid."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - see above

    from alignup.plugins.grants import Grant  # noqa: PLC0415
    from alignup.wire.device_plugin_pb2 import ContainerAllocateResponse  # noqa: PLC0415

    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    devices = kubelet_dir.read_dir(directory, gates=gates).devices
    for entry in devices.entries if devices else ():
        if not entry.response:
            continue
        try:
            given = Grant.of_message(ContainerAllocateResponse.FromString(entry.response))
        except DecodeError as error:
            what = f"what a device plugin gave pod {entry.uid} with its {entry.resource} cannot be read"
            raise StateError(f"{directory}: {what}: {error}") from error
        found.setdefault(entry.uid, {}).setdefault(entry.container, {})[entry.resource] = given.document()
    return found
