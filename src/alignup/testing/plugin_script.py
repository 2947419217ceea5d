"""The script actions of a device plugin, besides ``fault`` and ``crash`` (``alignup.testing.script``).

    {"after": 1, "do": "health", "id": "gpu-0", "health": "Unhealthy"}
    {"after": 1, "do": "remove", "id": "gpu-1"}
    {"after": 1, "do": "devices", "devices": "2@0"}
    {"after": 5, "do": "restart"}
    {"after": 5, "do": "register"}

``restart`` breaks every connection; ``register`` registers the plugin again.
"""

from alignup.rpc import StatusError
from alignup.testing.device_list import parse_device_list
from alignup.testing.plugin_server import Plugin
from alignup.testing.script import Action, Actions, Arguments


async def _register(plugin: Plugin, _: Arguments) -> None:
    try:
        await plugin.register()
    except StatusError as error:
        plugin.rejections.append(str(error))


ACTIONS: Actions[Plugin] = {
    "health": Action(
        lambda plugin, step: plugin.set_health(step["id"], step["health"]), required={"id": str, "health": str}
    ),
    "remove": Action(lambda plugin, step: plugin.remove(step["id"]), required={"id": str}),
    "devices": Action(
        lambda plugin, step: plugin.set_devices(step["devices"]),
        required={"devices": str},
        check=lambda step: parse_device_list("example.com/device", step["devices"]),
    ),
    "register": Action(_register),
    "restart": Action(lambda plugin, _: plugin.restart()),
}
