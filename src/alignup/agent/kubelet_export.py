"""What stands, as the state files of a kubelet with the same configuration, which can go on from there; and back."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from alignup.agent.daemon import DaemonOptions
from alignup.agent.pending_admission import PodGrants
from alignup.agent.recovery import recover
from alignup.agent.state import AgentState
from alignup.align.errors import StateError
from alignup.align.settings import FeatureGates
from alignup.state.checkpoint import CheckpointStore
from alignup.state.kubelet import export as states
from alignup.state.kubelet import state_dir
from alignup.state.lock import lock


def export(options: DaemonOptions, directory: Path) -> Iterator[str]:
    """Write the files to *directory*, and say what was written; the agent must not run meanwhile."""
    store = CheckpointStore(options.root)
    with lock(options.root):
        recovered = recover(store, options.host, terms=options.recovery, now=options.clock.now())
    if recovered.problems:
        raise StateError("; ".join(recovered.problems))
    found = states.export_ledger(recovered.standing.host, responses=allocate_responses(recovered.standing))
    for path in state_dir.write_dir(directory, found, gates=options.host.settings.gates):
        yield f"wrote {path}"
    for gap in found.gaps:
        yield f"note: {gap}"
    if waiting := len(recovered.standing.line.pods):
        yield f"note: {waiting} pods wait; a kubelet knows nothing of them"


def allocate_responses(standing: AgentState) -> dict[tuple[str, str, str], bytes]:
    """What plugins gave with devices, as the kubelet keeps it; by pod, container and resource."""
    from alignup.plugins.allocate_response import AllocateResponse  # noqa: PLC0415 - gRPC is for whoever needs it

    return {
        (uid, container, resource): AllocateResponse.from_document(given)
        .to_message()
        .SerializeToString(deterministic=True)
        for uid, known in standing.held.items()
        for container, own in known.grants.items()
        for resource, given in own.items()
    }


def read_grants(directory: Path, gates: FeatureGates) -> Mapping[str, PodGrants]:
    """What plugins gave with devices, as a kubelet kept it in *directory*; by uid."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - see above

    from alignup.plugins.allocate_response import AllocateResponse  # noqa: PLC0415
    from alignup.wire.device_plugin_pb2 import ContainerAllocateResponse  # noqa: PLC0415

    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    devices = state_dir.read_dir(directory, gates=gates).devices
    for entry in devices.entries if devices else ():
        if not entry.response:
            continue
        try:
            given = AllocateResponse.from_message(ContainerAllocateResponse.FromString(entry.response))
        except DecodeError as error:
            what = f"what a device plugin gave pod {entry.uid} with its {entry.resource} cannot be read"
            raise StateError(f"{directory}: {what}: {error}") from error
        found.setdefault(entry.uid, {}).setdefault(entry.container, {})[entry.resource] = given.to_document()
    return found
