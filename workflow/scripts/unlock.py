"""Remove the lock that a killed Snakemake left in this directory, unless another one still runs here.

Only kill −9 and power cuts leave a lock. This script sees the processes of this machine only. If other machines may run
Snakemake in this directory, make sure that none does.
"""

import sys
from pathlib import Path

import psutil


def running(here: Path) -> list[int]:
    """Return the ids of Snakemake processes that work in a directory."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        command = process.info["cmdline"] or []
        is_snakemake = any(Path(word).name == "snakemake" for word in command[:3])
        if is_snakemake and process.info["cwd"] == str(here):
            found.append(process.info["pid"])
    return found


def main() -> int:
    """Remove the lock; return 1 if it is in use."""
    locks = Path(".snakemake/locks")
    if not locks.is_dir() or not any(locks.iterdir()):
        return 0
    if others := running(Path.cwd()):
        print(f"error: snakemake already runs in this directory (process {others[0]}); wait for it", file=sys.stderr)
        return 1
    print("removing the lock of a run that was killed", file=sys.stderr)
    for lock in locks.iterdir():
        lock.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
