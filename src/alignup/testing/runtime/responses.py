"""Sandboxes and containers as CRI messages."""

import json
from collections.abc import Mapping
from typing import Any

from alignup.testing.runtime.containers import RuntimeContainer, Sandbox
from alignup.wire import cri_pb2 as wire

POD_IP = "127.0.0.1"  #: of every pod that is not on the host network: its processes really listen there


def sandbox_status(sandbox: Sandbox) -> wire.PodSandboxStatus:
    address = POD_IP if sandbox.ready and not sandbox.on_host_network else ""
    return wire.PodSandboxStatus(network=wire.PodSandboxNetworkStatus(ip=address), **_sandbox(sandbox))


def sandbox_summary(sandbox: Sandbox) -> wire.PodSandbox:
    return wire.PodSandbox(**_sandbox(sandbox))


def matches_sandbox_filter(sandbox: Sandbox, wanted: wire.PodSandboxFilter) -> bool:
    return (
        wanted.id in {"", sandbox.id}
        and (not wanted.HasField("state") or wanted.state.state == sandbox.state)
        and _has_labels(sandbox.config.labels, wanted.label_selector)
    )


def container_status(container: RuntimeContainer) -> wire.ContainerStatus:
    return wire.ContainerStatus(
        started_at=container.started,
        finished_at=container.finished,
        exit_code=container.exit_code,
        image=wire.ImageSpec(image=container.image.name),
        reason=container.reason,
        message=container.message,
        mounts=container.config.mounts,
        log_path=str(container.log_path or ""),
        resources=wire.ContainerResources(linux=container.resources),
        **_container(container),
    )


def container_info(container: RuntimeContainer) -> dict[str, str]:
    return {"info": json.dumps({"sandboxID": container.sandbox.id, "pid": container.pid})}


def container_summary(container: RuntimeContainer) -> wire.Container:
    return wire.Container(pod_sandbox_id=container.sandbox.id, image=container.config.image, **_container(container))


def matches_container_filter(container: RuntimeContainer, wanted: wire.ContainerFilter) -> bool:
    return (
        wanted.id in {"", container.id}
        and wanted.pod_sandbox_id in {"", container.sandbox.id}
        and (not wanted.HasField("state") or wanted.state.state == container.state)
        and _has_labels(container.config.labels, wanted.label_selector)
    )


def _sandbox(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "id": sandbox.id,
        "metadata": sandbox.config.metadata,
        "state": sandbox.state,
        "created_at": sandbox.created,
        "labels": sandbox.config.labels,
        "annotations": sandbox.config.annotations,
        "runtime_handler": sandbox.handler,
    }


def _container(container: RuntimeContainer) -> dict[str, Any]:
    return {
        "id": container.id,
        "metadata": container.config.metadata,
        "state": container.state,
        "created_at": container.created,
        "image_ref": container.image.id,
        "labels": container.config.labels,
        "annotations": container.config.annotations,
    }


def _has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())
