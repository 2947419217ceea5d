"""Sandboxes and containers as the runtime shows them."""

import json
from collections.abc import Mapping

from alignup.testing.runtime.containers import RuntimeContainer, Sandbox
from alignup.wire import cri_pb2 as wire

POD_IP = "127.0.0.1"  #: of every pod that is not on the host's network: that is where its processes really listen


def sandbox_state(sandbox: Sandbox) -> wire.PodSandboxState:
    """Ready or not."""
    return wire.PodSandboxState.SANDBOX_READY if sandbox.ready else wire.PodSandboxState.SANDBOX_NOTREADY


def sandbox_status(sandbox: Sandbox) -> wire.PodSandboxStatus:
    """All that is known of one."""
    config = sandbox.config
    address = POD_IP if sandbox.ready and not sandbox.on_host_network else ""
    return wire.PodSandboxStatus(
        id=sandbox.id,
        metadata=config.metadata,
        state=sandbox_state(sandbox),
        created_at=sandbox.created,
        network=wire.PodSandboxNetworkStatus(ip=address),
        labels=config.labels,
        annotations=config.annotations,
        runtime_handler=sandbox.handler,
    )


def sandbox_summary(sandbox: Sandbox) -> wire.PodSandbox:
    """What a list tells of one."""
    config = sandbox.config
    return wire.PodSandbox(
        id=sandbox.id,
        metadata=config.metadata,
        state=sandbox_state(sandbox),
        created_at=sandbox.created,
        labels=config.labels,
        annotations=config.annotations,
        runtime_handler=sandbox.handler,
    )


def matches_sandbox_filter(sandbox: Sandbox, wanted: wire.PodSandboxFilter) -> bool:
    """Whether a filter lets it through."""
    return (
        wanted.id in {"", sandbox.id}
        and (not wanted.HasField("state") or wanted.state.state == sandbox_state(sandbox))
        and _has(sandbox.config.labels, wanted.label_selector)
    )


def container_status(container: RuntimeContainer) -> wire.ContainerStatus:
    """All that is known of one."""
    config = container.config
    return wire.ContainerStatus(
        id=container.id,
        metadata=config.metadata,
        state=container.state,
        created_at=container.created,
        started_at=container.started,
        finished_at=container.finished,
        exit_code=container.exit_code,
        image=wire.ImageSpec(image=container.image.name),
        image_ref=container.image.id,
        reason=container.reason,
        message=container.message,
        labels=config.labels,
        annotations=config.annotations,
        mounts=config.mounts,
        log_path=str(container.log_path or ""),
        resources=wire.ContainerResources(linux=container.resources),
    )


def container_info(container: RuntimeContainer) -> dict[str, str]:
    """What a verbose answer tells beyond that."""
    return {"info": json.dumps({"sandboxID": container.sandbox.id, "pid": container.pid})}


def container_summary(container: RuntimeContainer) -> wire.Container:
    """What a list tells of one."""
    config = container.config
    return wire.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox.id,
        metadata=config.metadata,
        image=config.image,
        image_ref=container.image.id,
        state=container.state,
        created_at=container.created,
        labels=config.labels,
        annotations=config.annotations,
    )


def matches_container_filter(container: RuntimeContainer, wanted: wire.ContainerFilter) -> bool:
    """Whether a filter lets it through."""
    return (
        wanted.id in {"", container.id}
        and wanted.pod_sandbox_id in {"", container.sandbox.id}
        and (not wanted.HasField("state") or wanted.state.state == container.state)
        and _has(container.config.labels, wanted.label_selector)
    )


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())
