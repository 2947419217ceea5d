"""Pods as alignment needs them.

``pod`` has the types, ``names`` the rules for names, ``validation`` defaults and validation, ``demand`` the requests.
"""

from alignup.align.workload.pod import Amounts, Container, ContainerStatus, Pod, PodClaim, QoS, Resources

__all__ = ["Amounts", "Container", "ContainerStatus", "Pod", "PodClaim", "QoS", "Resources"]
