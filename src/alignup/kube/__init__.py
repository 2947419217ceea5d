"""Reading what Kubernetes people already have: pods as they are written for a cluster."""
