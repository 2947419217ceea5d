"""Permissions that roles grant, and those that a program needs according to its requests."""

from collections.abc import Iterable

from alignup.testing.api_server import ApiServer
from alignup.testing.api_server.operations import APPLY
from tests.deploy.manifests import Manifest

Permission = tuple[str, str, str]  #: verb, API group, and resource or resource/subresource


def granted(*roles: Manifest) -> set[Permission]:
    """Return the permissions of roles; each may be granted once only."""
    permissions = [
        (verb, group, resource)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert len(permissions) == len(set(permissions)), "a permission is granted twice"
    return set(permissions)


def used(servers: Iterable[ApiServer], agent: str = "") -> set[Permission]:
    """Return the permissions that Kubernetes checks for the requests that *servers* received (of user *agent* only).

    To apply an object that does not exist needs the permission to create it, too.
    """
    permissions = set()
    for server in servers:
        for request in server.requests:
            call = server.resources.parse(request)
            if agent and request.headers.get("user-agent") != agent:
                continue
            if call is None:  # such as /version, which all users may read
                continue
            group = call.resource.api_version.rpartition("/")[0]
            resource = "/".join(filter(None, (call.resource.plural, call.subresource)))
            permissions.add((call.verb, group, resource))
            if call.verb == "patch" and call.content_type in APPLY:
                permissions.add(("create", group, resource))
    return permissions
