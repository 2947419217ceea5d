"""A node inside a guest: its file systems, and device plugins and a PodResources client that a host calls."""
# ruff: noqa: S603

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.json_format import MessageToDict

from alignup.align import bits
from alignup.align.machine import Device
from alignup.testing import Plugin, Preference
from alignup.wire import pod_resources_pb2 as wire

Document = dict[str, Any]
Found = TypeVar("Found")

GROUPS = Path("/sys/fs/cgroup")
TIMEOUT = 300.0  #: seconds


def prepare_system(hostname: str) -> None:
    """Mount file systems, bring the loopback interface up, and write the few files that programs expect."""
    for words in (
        ("mount", "-t", "cgroup2", "none", os.fspath(GROUPS)),
        ("mount", "-t", "tmpfs", "tmpfs", "/run"),
        ("mount", "--make-rshared", "/"),
        ("busybox", "ip", "link", "set", "lo", "up"),
    ):
        subprocess.run(words, check=True)
    socket.sethostname(hostname)
    for name, text in (
        ("passwd", "root:x:0:0:root:/root:/bin/sh\n"),
        ("group", "root:x:0:\n"),
        ("hosts", "127.0.0.1 localhost\n"),
        ("machine-id", "00000000000000000000000000000001\n"),
        ("resolv.conf", ""),
    ):
        (Path("/etc") / name).write_text(text)


async def answer_calls(peers: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Call methods of *peers* as asked, one JSON object a line, until the other side closes."""
    while raw := await reader.readline():
        arguments = json.loads(raw)
        try:
            answer = {"result": await getattr(peers, arguments.pop("do"))(**arguments)}
        except Exception as error:  # noqa: BLE001 - sent to the caller
            answer = {"error": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


class PeerMethods:
    """Device plugins, and a PodResources client."""

    def __init__(self, directory: Path, lister: Path) -> None:
        self.directory, self.pod_resources_socket = directory, lister
        self.plugins: dict[str, Plugin] = {}

    async def start(self, offer: Document) -> None:
        """Start a plugin as described in a recording."""
        devices = [
            Device(offer["resource"], one["id"], None if one["nodes"] is None else bits.of(one["nodes"]))
            for one in offer["devices"]
        ]
        plugin = Plugin(
            offer["resource"],
            devices,
            directory=self.directory,
            preference=Preference.HIGHEST if offer["preferred"] else Preference.NONE,
            endpoint=offer["endpoint"],
        )
        plugin.pre_start = offer["pre_start_required"]
        await plugin.__aenter__()
        self.plugins[offer["resource"]] = plugin
        await asyncio.wait_for(plugin.wait_registered(), TIMEOUT)

    async def stop(self, resource: str) -> None:
        await self.plugins.pop(resource).__aexit__()

    async def again(self, times: Mapping[str, int]) -> None:
        """Wait until every plugin has registered once more than *times*."""
        for resource, count in times.items():
            await asyncio.wait_for(self.plugins[resource].wait_registered(count + 1), TIMEOUT)

    async def registrations(self) -> dict[str, int]:
        """The number of registrations of each plugin."""
        return {resource: plugin.registrations for resource, plugin in self.plugins.items()}

    async def health(self, resource: str, id_: str, health: str) -> None:
        """Change the health of a device, or remove it."""
        if health == "gone":
            self.plugins[resource].remove(id_)
        else:
            self.plugins[resource].set_health(id_, health)

    async def resources(self) -> Document:
        """Both PodResources responses in the format of recordings."""
        found = {}
        async with grpc.aio.insecure_channel(f"unix:{self.pod_resources_socket}") as line:
            for key, method, request, kind in (
                ("podresources_list", "List", wire.ListPodResourcesRequest, wire.ListPodResourcesResponse),
                (
                    "podresources_allocatable",
                    "GetAllocatableResources",
                    wire.AllocatableResourcesRequest,
                    wire.AllocatableResourcesResponse,
                ),
            ):
                ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
                ask = line.unary_unary(f"/v1.PodResourcesLister/{method}")
                response = kind.FromString(await ask(request().SerializeToString()))
                found[key] = MessageToDict(
                    response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
                )
        return found
