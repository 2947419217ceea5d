"""The web pages of the cluster service."""
