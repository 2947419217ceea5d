"""The addresses on which the programs of a cluster listen."""

from alignup.align.errors import ParseError
from alignup.cli.app import InputError, Place
from alignup.web.address import TcpAddress, parse_address


def parse_listen_address(text: str, option: str) -> TcpAddress:
    """Parse ``HOST:PORT``, or ``:PORT`` for all addresses of this machine."""
    try:
        address = parse_address(text, listening=True)
    except ParseError:
        address = None
    if not isinstance(address, TcpAddress) or address.tls is not None:
        advice = "Give HOST:PORT, or :PORT for all addresses."
        raise InputError(f"{text} is not an address", place=Place(option), advice=advice)
    return address
