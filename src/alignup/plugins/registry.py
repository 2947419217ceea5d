"""The Registration service for device plugins: ``kubelet.sock`` in their directory.

Plugins watch that directory: when ``kubelet.sock`` is recreated and their own socket is gone, they register again.
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
async def serve_registry(directory: Path, *, connect: Connect, metrics: PluginMetrics) -> AsyncIterator[None]:
    """Accept registrations in *directory*; *connect* runs before the plugin gets its response.

    Removes all sockets in the directory first; other files stay. Raises ``ListenError`` if another server listens.
    """

    async def register(request: wire.RegisterRequest) -> wire.Empty:
        metrics.count_registration(request.resource_name)
        try:
            check_request(request)
            await connect(request.resource_name, socket_path(directory, request.endpoint))
        except PluginError as error:
            _LOG.warning("device plugin rejected: resource=%s error=%s", quote(request.resource_name), error)
            raise rpc.StatusError(str(error)) from error
        return wire.Empty()

    rpc.check_socket_path(directory / SOCKET)
    clear_sockets(directory)
    methods: dict[str, rpc.Method] = {"Register": (wire.RegisterRequest, register)}
    async with rpc.serve(directory / SOCKET, _SERVICE, methods):
        yield


def check_request(request: wire.RegisterRequest) -> None:
    """Raise ``PluginError``, with the kubelet's text, for a plugin that the kubelet rejects."""
    if request.version != VERSION:
        raise PluginError(
            f"requested API version {quote(request.version)} is not supported by kubelet. "
            f"Supported version is [{quote(VERSION)}]"
        )
    if not names.is_extended(request.resource_name):
        raise PluginError(f"the ResourceName {quote(request.resource_name)} is invalid")


def socket_path(directory: Path, endpoint: str) -> Path:
    """Return the plugin's socket; *endpoint* is relative to *directory* even if it starts with a slash."""
    return Path(os.path.normpath(f"{directory.absolute()}/{endpoint}"))


def clear_sockets(directory: Path) -> None:
    """Create *directory* if needed, and remove every socket in it."""
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in directory.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise ListenError(
            f"cannot use the device plugin directory {directory}: {error.strerror}\n"
            "choose a directory that this user may write to"
        ) from error
