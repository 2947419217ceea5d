"""Tests that need QEMU, root, a container runtime, a browser or programs of Kubernetes: ``make e2e``."""
