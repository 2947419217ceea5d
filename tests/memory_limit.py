"""Python code in a process whose memory is limited."""

import subprocess
import sys


def run_limited(code: str, *arguments: str, memory: int) -> str:
    """Return what *code* prints before it ends, or before it needs more than *memory* bytes of address space."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))"
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", f"{limit}\n{code}", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    return done.stdout
