"""The resources of Dynamic Resource Allocation (resource.k8s.io/v1)."""

from alignup.kubernetes.api.resource import Resource
from alignup.kubernetes.manifests.claims import (
    DeviceClassObject,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)

GROUP = "resource.k8s.io"
RESOURCE_CLAIMS = Resource(
    type=ResourceClaim, kind="ResourceClaim", plural="resourceclaims", group=GROUP, namespaced=True
)
RESOURCE_CLAIM_TEMPLATES = Resource(
    type=ResourceClaimTemplate,
    kind="ResourceClaimTemplate",
    plural="resourceclaimtemplates",
    group=GROUP,
    namespaced=True,
)
DEVICE_CLASSES = Resource(type=DeviceClassObject, kind="DeviceClass", plural="deviceclasses", group=GROUP)
RESOURCE_SLICES = Resource(type=ResourceSlice, kind="ResourceSlice", plural="resourceslices", group=GROUP)
