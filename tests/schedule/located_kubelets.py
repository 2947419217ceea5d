"""Kubelets whose devices have places below their NUMA nodes."""

from typing import Any

from tests.observe.kubelets import ObservedKubelet
from tests.placement.located_hosts import GPU, located_machine


def located_kubelet(**shape: Any) -> ObservedKubelet:
    """A kubelet with a ``located_machine`` of this shape, whose observer knows where its GPUs are."""
    machine = located_machine(**shape)
    kubelet = ObservedKubelet(machine=machine.with_reported(()), devices=machine.devices)
    kubelet.addresses = {f"{GPU}={device.uuid}": device.address for device in machine.pci if device.uuid}
    return kubelet
