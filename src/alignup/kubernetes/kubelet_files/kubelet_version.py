"""The version of the kubelet that is installed on this machine."""

import shutil
import subprocess

_SECONDS = 5.0


def find_kubelet_version() -> str:
    """Return what ``kubelet --version`` says, such as ``v1.36.4``; empty if no kubelet is installed or it fails."""
    program = shutil.which("kubelet")
    if program is None:
        return ""
    try:
        process = subprocess.run(  # noqa: S603 - the kubelet of this machine
            [program, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip().removeprefix("Kubernetes ")
