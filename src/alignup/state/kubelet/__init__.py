"""The kubelet's own state files, read, verified and written byte for byte."""
