"""Manifests of pods, as JSON, which is YAML as well."""

import json


def pod_manifest(name: str = "web", namespace: str = "", **limits: str) -> str:
    """Return a pod with one container, which is limited to *limits*; ``gpu`` stands for ``example.com/gpu``."""
    amounts = {key.replace("gpu", "example.com/gpu"): value for key, value in limits.items()}
    container = {"name": "app", "image": "example.com/app", "resources": {"limits": amounts}}
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})
