"""An API server for tests: list, watch, patch, apply, binding and eviction over real HTTP, and faults on demand.

``docs/testing.md`` shows how to use it.
"""

from alignup.testing.api_server.faults import ApiFault
from alignup.testing.api_server.server import ApiServer
from alignup.testing.api_server.store import ServedResource

__all__ = ["ApiFault", "ApiServer", "ServedResource"]
