"""The memory of this process, as the kernel counts it for the process alone.

``ru_maxrss`` is not that: a new process begins with the value of the one that started it.
"""

from pathlib import Path


def peak_megabytes() -> float:
    """Return the most memory that this process has had since it began."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(kilobytes) / 1e3
