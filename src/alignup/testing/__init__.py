"""A device plugin for tests, of this project's and of yours: one that does as it is told, and as badly as you like.

It speaks the kubelet's device plugin interface (v1beta1), so it registers with a kubelet as with the agent. As a
process:

    python -m alignup.testing.plugin --resource example.com/gpu --devices 4@0,4@1 --dir plugins

and in a test of your own:

    async with Plugin("example.com/gpu", "4@0,4@1", directory=directory) as plugin:
        await plugin.registered()                # whoever is tested has taken the registration
        plugin.set_health("gpu-0", "Unhealthy")  # and is told of it
        plugin.misbehave("Allocate", Fault(hang=True))

``--script FILE`` has the process do such things at set times (``alignup.testing.script``).
"""

import os

#: gRPC writes a line on the standard error output whenever a peer goes away; it reads this when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from alignup.testing.device_list import Preference, parse_device_list
from alignup.testing.faults import Fault
from alignup.testing.plugin_server import Plugin

__all__ = ["Fault", "Plugin", "Preference", "parse_device_list"]
