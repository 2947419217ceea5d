"""A connection between a browser and a server that can be cut."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from e2e.egress import copy_both_ways


class BrokenLine:
    """Passes on bytes between its *port* and *target* until it is cut, and again after it is mended."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._cut.set()
        for connection in tuple(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._cut.clear()

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                if self._cut.is_set():
                    client.close()
                else:
                    threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            self._open |= {client, server}
            copy_both_ways(client, server)
            self._open -= {client, server}


@contextmanager
def broken_line(target: int) -> Iterator[BrokenLine]:
    line = BrokenLine(target)
    try:
        yield line
    finally:
        line.close()
