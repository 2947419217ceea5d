"""Reads the files of Kubernetes users: manifests and KubeletConfiguration files."""
