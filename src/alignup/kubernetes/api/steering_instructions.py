"""``SteeringInstruction`` objects, as a resource of the API."""

from alignup.documents import steering as schema
from alignup.documents.steering import SteeringInstruction
from alignup.kubernetes.api.resource import Resource

STEERING_INSTRUCTIONS = Resource(
    type=SteeringInstruction, kind=schema.KIND, plural=schema.PLURAL, group=schema.GROUP, version=schema.VERSION
)
