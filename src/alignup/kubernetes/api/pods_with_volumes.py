"""Pods with their volumes, which decide whether they may be evicted."""

from alignup.kubernetes.api.objects import ApiPod, ApiPodSpec
from alignup.kubernetes.api.resource import Resource
from alignup.kubernetes.manifests.disruption import PodVolume


class SpecWithVolumes(ApiPodSpec, frozen=True):
    volumes: tuple[PodVolume, ...] = ()


class PodWithVolumes(ApiPod, frozen=True):
    spec: SpecWithVolumes = SpecWithVolumes()


PODS_WITH_VOLUMES = Resource(type=PodWithVolumes, kind="Pod", plural="pods", namespaced=True)
