"""Scriptable test servers on real sockets, and a simulated kubelet.

A device plugin and a DRA driver are here, a Kubernetes API server in ``alignup.testing.api_server``, and the kubelet in
``alignup.testing.simulated_kubelet``. The plugin
implements the kubelet's device plugin API (v1beta1), so it registers with a kubelet as well as with the agent; the
driver implements the kubelet's API for Dynamic Resource Allocation (v1).
``docs/testing.md`` shows how to use them, as processes and in tests.
"""

import os

#: gRPC logs a line to standard error whenever a peer disconnects; it reads this variable when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from alignup.testing.dra_server import ClaimFault, DraDevice, DraDriver
from alignup.testing.faulty_server import Fault
from alignup.testing.plugin_server import Plugin, Preference, parse_device_list

__all__ = ["ClaimFault", "DraDevice", "DraDriver", "Fault", "Plugin", "Preference", "parse_device_list"]
