"""The peak memory of a process that a test starts."""

PEAK_MEMORY = """
import resource, sys
from pathlib import Path

def resident_peak_mib():
    status = Path("/proc/self/status")
    if status.is_file():
        # Unlike getrusage's, this peak excludes that of the parent process.
        lines = status.read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
"""
"""Source of `resident_peak_mib()`, the peak resident memory in MiB, to put before a program for `python -c`."""
