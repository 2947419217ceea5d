"""Pods from manifest files: the directory, and the watcher that keeps it in step with the agent."""
