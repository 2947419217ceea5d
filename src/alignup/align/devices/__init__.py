"""The device manager: the ledger (``ledger``), hints (``hints``, ``cover``) and allocation (``provider``)."""

from alignup.align.devices.ledger import DeviceIds, DeviceInventory, DeviceLedger, DeviceSet, natural_sort_key
from alignup.align.devices.provider import DeviceProvider, DeviceRequest, PreferenceAnswers, PreferenceRequest

__all__ = [
    "DeviceIds",
    "DeviceInventory",
    "DeviceLedger",
    "DeviceProvider",
    "DeviceRequest",
    "DeviceSet",
    "PreferenceAnswers",
    "PreferenceRequest",
    "natural_sort_key",
]
