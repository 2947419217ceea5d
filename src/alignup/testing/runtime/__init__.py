"""A container runtime for tests, of this project's and of yours: it speaks CRI v1, and isolates nothing.

Its containers are processes of this machine, with logs, exit codes, signals and grace as containerd has them, so no
privileges and no images are needed. As a process:

    python -m alignup.testing.runtime --socket run/cri.sock --dir run --image busybox

and in a test of your own:

    async with Runtime(socket, directory=directory, images=["busybox"]) as runtime:
        await runtime.called("StartContainer")  # whoever is tested has started something
        runtime.kill("main")                    # and sees it end
        runtime.misbehave("PullImage", Fault(error="no route to host", code="UNAVAILABLE", times=2))
        await runtime.restart()                 # every connection breaks; what runs goes on

``--script FILE`` has the process do such things at set times (``alignup.testing.runtime.script``).
"""

from alignup.testing.faults import Fault
from alignup.testing.runtime.containers import RuntimeContainer, Sandbox
from alignup.testing.runtime.server import Runtime

__all__ = ["Fault", "Runtime", "RuntimeContainer", "Sandbox"]
