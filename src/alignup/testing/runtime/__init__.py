"""A container runtime for tests: it serves CRI v1 and runs containers as plain processes, without isolation.

Logs, exit codes, signals and grace periods behave as with containerd, so tests need neither privileges nor images. As
a process:

    python -m alignup.testing.runtime --socket run/cri.sock --dir run --image busybox

and in a test:

    async with Runtime(socket, directory=directory, images=["busybox"]) as runtime:
        await runtime.wait_called("StartContainer")
        runtime.kill("main")
        runtime.inject("PullImage", Fault(error="no route to host", code="UNAVAILABLE", times=2))
        await runtime.restart()  # breaks every connection; containers keep running
"""

from alignup.testing.recording_server import Fault
from alignup.testing.runtime.containers import RuntimeContainer, Sandbox
from alignup.testing.runtime.server import Runtime

__all__ = ["Fault", "Runtime", "RuntimeContainer", "Sandbox"]
