"""Manifests: YAML and JSON as Kubernetes reads them, pods and workloads."""
