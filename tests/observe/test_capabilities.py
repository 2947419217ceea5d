"""All capabilities are dropped for good; in another process, since this one needs its own."""

import subprocess
import sys

CODE = """
from pathlib import Path
from alignup.observe.capabilities import drop_capabilities
drop_capabilities()
lines = Path("/proc/self/status").read_text().splitlines()
print([line.split()[1] for line in lines if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs"))])
"""


def test_no_capability_is_left():
    ran = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)  # noqa: S603 - ours

    none = "0" * 16
    assert ran.stdout.strip() == str([none, none, none, none, "1"])
