"""Devices: who holds which (``ledger``), where they could come from (``families``), giving them out (``provider``)."""

from alignup.align.devices.hints import CoverageFamily, device_family
from alignup.align.devices.ledger import DeviceIds, DeviceInventory, DeviceLedger, DeviceSet, natural_sort_key
from alignup.align.devices.provider import (
    DeviceAllocation,
    DeviceRequest,
    DevicesByAffinity,
    PreferenceAnswers,
    PreferenceRequest,
    allocate,
    devices_to_allocate,
    filter_by_affinity,
    hints,
    pod_hints,
    release,
    retain,
)

__all__ = [
    "CoverageFamily",
    "DeviceAllocation",
    "DeviceIds",
    "DeviceInventory",
    "DeviceLedger",
    "DeviceRequest",
    "DeviceSet",
    "DevicesByAffinity",
    "PreferenceAnswers",
    "PreferenceRequest",
    "allocate",
    "device_family",
    "devices_to_allocate",
    "filter_by_affinity",
    "hints",
    "natural_sort_key",
    "pod_hints",
    "release",
    "retain",
]
