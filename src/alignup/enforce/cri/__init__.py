"""Containers through the Container Runtime Interface: containerd, CRI-O, or whoever else speaks it."""
