"""Containers through the Container Runtime Interface (CRI): containerd, CRI-O and others."""
