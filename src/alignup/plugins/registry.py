"""Where device plugins register: ``kubelet.sock`` in their directory.

Plugins watch that directory: a socket made anew there, and theirs removed, tells them to register again.
"""

import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from alignup import rpc
from alignup.align.bits import quote
from alignup.align.errors import ListenError, PluginError
from alignup.align.workload import names
from alignup.plugins.metrics import PluginMetrics
from alignup.wire import device_plugin_pb2 as wire

SOCKET = "kubelet.sock"
VERSION = "v1beta1"

_LOG = logging.getLogger(__name__)
_SERVICE = wire.DESCRIPTOR.services_by_name["Registration"]

Connect = Callable[[str, Path], Awaitable[None]]


@asynccontextmanager
async def serve_registry(directory: Path, *, connect: Connect, tally: PluginMetrics) -> AsyncIterator[None]:
    """Take registrations in *directory* as long as this lasts, and have each plugin connected to before it is answered.

    All sockets found there are removed first; other files stay. ``ListenError`` where somebody else listens.
    """

    async def register(request: wire.RegisterRequest) -> wire.Empty:
        tally.registered(request.resource_name)
        try:
            check_request(request)
            await connect(request.resource_name, socket_path(directory, request.endpoint))
        except PluginError as error:
            _LOG.warning("device plugin of %s is refused: %s", quote(request.resource_name), error)
            raise rpc.StatusError(str(error)) from error
        return wire.Empty()

    rpc.check_socket_path(directory / SOCKET)
    clear_sockets(directory)
    methods: dict[str, rpc.Method] = {"Register": (wire.RegisterRequest, register)}
    async with rpc.serve(directory / SOCKET, _SERVICE, methods):
        yield


def check_request(request: wire.RegisterRequest) -> None:
    """Refuse a plugin the kubelet would refuse, in its words."""
    if request.version != VERSION:
        raise PluginError(
            f"requested API version {quote(request.version)} is not supported by kubelet. "
            f"Supported version is [{quote(VERSION)}]"
        )
    if not names.is_extended(request.resource_name):
        raise PluginError(f"the ResourceName {quote(request.resource_name)} is invalid")


def socket_path(directory: Path, endpoint: str) -> Path:
    """The socket a plugin named, which is in *directory* whatever it starts with."""
    return Path(os.path.normpath(f"{directory.absolute()}/{endpoint}"))


def clear_sockets(directory: Path) -> None:
    """Make the directory if it is not there, and remove every socket in it."""
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in directory.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise ListenError(
            f"the directory of device plugins {directory} cannot be used: {error.strerror}\n"
            "choose one that this user may write to"
        ) from error
