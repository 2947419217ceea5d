"""What needs more than a test run gives: QEMU, root, a container runtime."""
