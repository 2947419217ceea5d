"""What a pod runs, from its manifest: parsed, defaulted as by the API server, and checked against permissions.

Every field is handled in one of three ways. It takes effect; or it asks for something unavailable or forbidden, and
the pod is rejected with all such fields at once; or it has no effect here, and a warning says so. No field is dropped
silently unless it makes no difference.
"""

from alignup.kube.podspec.manifest import ParsedPodSpec, PodManifest, manifest_of, parse_pod_spec, pod_spec_of

__all__ = ["ParsedPodSpec", "PodManifest", "manifest_of", "parse_pod_spec", "pod_spec_of"]
