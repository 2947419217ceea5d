"""The kubelet's state files, read and written byte for byte."""
