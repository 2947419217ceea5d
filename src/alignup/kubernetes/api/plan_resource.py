"""``Plan`` objects, as a resource of the API."""

from alignup.documents import plans as schema
from alignup.documents.plans import Plan
from alignup.kubernetes.api.resource import Resource

PLANS = Resource(type=Plan, kind=schema.KIND, plural=schema.PLURAL, group=schema.GROUP, version=schema.VERSION)
