"""Devices: who holds which (``ledger``), where they could come from (``families``), giving them out (``provider``)."""

from alignup.align.devices.families import Coverage, family
from alignup.align.devices.ledger import DeviceLedger, Devices, Held, Inventory, natural
from alignup.align.devices.provider import (
    Allocation,
    Answers,
    Ask,
    Request,
    Split,
    allocate,
    choose,
    hints,
    pod_hints,
    release,
    retain,
    split,
)

__all__ = [
    "Allocation",
    "Answers",
    "Ask",
    "Coverage",
    "DeviceLedger",
    "Devices",
    "Held",
    "Inventory",
    "Request",
    "Split",
    "allocate",
    "choose",
    "family",
    "hints",
    "natural",
    "pod_hints",
    "release",
    "retain",
    "split",
]
