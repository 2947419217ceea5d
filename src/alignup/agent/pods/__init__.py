"""Pods that run: their sandboxes, containers, volumes and logs, from the first image to the last signal."""
