"""Scriptable test doubles on real sockets: a device plugin here, a container runtime in ``alignup.testing.runtime``.

The plugin implements the kubelet's device plugin API (v1beta1), so it registers with a kubelet as well as with the
agent. As a process:

    python -m alignup.testing.plugin --resource example.com/gpu --devices 4@0,4@1 --dir plugins

and in a test:

    async with Plugin("example.com/gpu", "4@0,4@1", directory=directory) as plugin:
        await plugin.wait_registered()
        plugin.set_health("gpu-0", "Unhealthy")
        plugin.inject("Allocate", Fault(hang=True))

``--script FILE`` makes the process do such things at given times (``alignup.testing.script``).
"""

import os

#: gRPC logs a line to standard error whenever a peer disconnects; it reads this variable when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from alignup.testing.plugin_server import Plugin, Preference, parse_device_list
from alignup.testing.recording_server import Fault

__all__ = ["Fault", "Plugin", "Preference", "parse_device_list"]
