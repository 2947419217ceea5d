"""Scriptable test servers on real sockets.

A device plugin is here, a Kubernetes API server in ``alignup.testing.api_server``. The plugin
implements the kubelet's device plugin API (v1beta1), so it registers with a kubelet as well as with the agent.
``docs/testing.md`` shows how to use them, as processes and in tests.
"""

import os

#: gRPC logs a line to standard error whenever a peer disconnects; it reads this variable when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from alignup.testing.plugin_server import Fault, Plugin, Preference, parse_device_list

__all__ = ["Fault", "Plugin", "Preference", "parse_device_list"]
