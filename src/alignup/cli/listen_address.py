"""The addresses on which the programs of a cluster listen."""

from alignup.agent.address import TcpAddress
from alignup.cli.app import InputError


def parse_listen_address(text: str, option: str) -> TcpAddress:
    """Parse ``HOST:PORT``, or ``:PORT`` for all addresses of this machine, as programs of Kubernetes do."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise InputError(f"{text} is not an address", where=f"in {option}", advice="Give HOST:PORT, or :PORT for all.")
    return TcpAddress(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 - as asked for
