"""What is to be placed.

``pod`` is what somebody wrote, ``names`` what may be called how, ``rules`` what becomes of a pod on its way to a host,
and ``demand`` what it then asks for.
"""

from alignup.align.workload.pod import Amounts, Container, ContainerStatus, Manifest, Pod, QoS, Resources

__all__ = ["Amounts", "Container", "ContainerStatus", "Manifest", "Pod", "QoS", "Resources"]
