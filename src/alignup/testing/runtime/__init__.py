"""A container runtime for tests: it serves CRI v1 and runs containers as plain processes, without isolation.

Logs, exit codes, signals and grace periods behave as with containerd, so tests need neither privileges nor images.
"""

from alignup.testing.recording_server import Fault
from alignup.testing.runtime.containers import RuntimeContainer, Sandbox
from alignup.testing.runtime.server import Runtime

__all__ = ["Fault", "Runtime", "RuntimeContainer", "Sandbox"]
