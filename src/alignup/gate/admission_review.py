"""Objects of admission webhooks: the review that the API server sends, its answer, and the configuration.

A review has only what Alignup reads of a pod that is about to be created; such a pod may have no name and no uid yet.
"""

import msgspec

from alignup.kubernetes.api.objects import ObjectMeta, OwnerReference
from alignup.kubernetes.api.resource import Resource
from alignup.kubernetes.manifests.pod import Labels, NamedItem, ObjectPart

REVIEW_VERSION, REVIEW_KIND = "admission.k8s.io/v1", "AdmissionReview"


class NewPodMeta(ObjectPart, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class NewPodSpec(ObjectPart, frozen=True):
    node_name: str = ""
    scheduling_gates: tuple[NamedItem, ...] | None = None


class NewPod(ObjectPart, frozen=True):
    """A pod that is about to be created."""

    metadata: NewPodMeta = NewPodMeta()
    spec: NewPodSpec = NewPodSpec()


class GroupVersionResource(ObjectPart, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class ReviewRequest(ObjectPart, frozen=True):
    uid: str
    operation: str
    resource: GroupVersionResource
    object: NewPod | None = None  #: ``None`` for a deletion
    sub_resource: str = ""


class ReviewResponse(ObjectPart, frozen=True):
    """The answer; ``patch`` is JSON, which is sent in base64."""

    uid: str
    allowed: bool
    patch_type: str = ""
    patch: bytes = b""


class AdmissionReview(ObjectPart, frozen=True):
    api_version: str
    kind: str
    request: ReviewRequest | None = None


class AnsweredReview(msgspec.Struct, frozen=True, rename="camel"):
    response: ReviewResponse
    api_version: str = REVIEW_VERSION
    kind: str = REVIEW_KIND


class WebhookClient(ObjectPart, frozen=True):
    """How the API server reaches a webhook."""

    ca_bundle: str = ""  #: PEM certificates in base64


class Webhook(ObjectPart, frozen=True):
    name: str
    client_config: WebhookClient = WebhookClient()


class WebhookConfiguration(ObjectPart, frozen=True):
    """A ``MutatingWebhookConfiguration``."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] = ()


class Secret(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: Labels = msgspec.field(default_factory=dict)  #: each value in base64


SECRETS = Resource(type=Secret, kind="Secret", plural="secrets", namespaced=True)
WEBHOOK_CONFIGURATIONS = Resource(
    type=WebhookConfiguration,
    kind="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    group="admissionregistration.k8s.io",
)
