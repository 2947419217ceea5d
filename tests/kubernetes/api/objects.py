"""Objects for the test server."""


def pod(name="web", *, namespace="default", cpu="1", phase="Running", **metadata):
    resources = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"containers": [{"name": "app", "image": "app:1", "resources": resources}]},
        "status": {"phase": phase},
    }


def node(name="host-a", **metadata):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}, "spec": {}, "status": {}}
