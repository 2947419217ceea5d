"""The export of the agent's state to a kubelet's state files, and the import of device grants from them."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from alignup.agent.daemon import DaemonOptions
from alignup.agent.recovery import recover
from alignup.agent.state import AgentState
from alignup.align.errors import StateError
from alignup.align.settings import FeatureGates
from alignup.documents.pod_documents import PodGrants
from alignup.kubernetes.kubelet_files import ledger as states
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.plugins.allocate_response import AllocateResponse
from alignup.store.lock import lock
from alignup.store.state_store import StateStore


def export(options: DaemonOptions, directory: Path) -> Iterator[str]:
    """Write the state files to *directory* and yield messages; the agent must not be running."""
    with closing(StateStore(options.root)) as store, lock(options.root):
        recovery = recover(store, options.host, options=options.recovery, now=options.clock.now())
    if recovery.problems:
        raise StateError("; ".join(recovery.messages(options.recovery)))
    files = states.export_ledger(recovery.state.host, responses=allocate_responses(recovery.state))
    for path in state_files.write_state_files(directory, files, gates=options.host.settings.gates):
        yield f"wrote {path}"
    for gap in files.gaps:
        yield f"note: {gap}"
    if waiting_pods := len(recovery.state.waiting):
        yield f"note: {waiting_pods} waiting pods are not exported"


def allocate_responses(state: AgentState) -> dict[tuple[str, str, str], bytes]:
    """Return uid, container and resource → the serialized response of the plugin's Allocate."""
    responses = {}
    for uid, record in state.admitted.items():
        for container, grants in record.grants.items():
            for resource, grant in grants.items():
                message = AllocateResponse.from_document(grant).to_message()
                responses[uid, container, resource] = message.SerializeToString(deterministic=True)
    return responses


def read_grants(directory: Path, gates: FeatureGates) -> Mapping[str, PodGrants]:
    grants: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    devices = state_files.read_state_files(directory, gates=gates).devices
    for entry in devices.entries if devices else ():
        if not entry.response:
            continue
        try:
            grant = AllocateResponse.from_bytes(entry.response)
        except StateError as error:
            message = f"cannot decode the Allocate response for {entry.resource} of pod {entry.uid}"
            raise StateError(f"{directory}: {message}: {error}") from error
        grants.setdefault(entry.uid, {}).setdefault(entry.container, {})[entry.resource] = grant.to_document()
    return grants
