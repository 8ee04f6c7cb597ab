"""Make a virtual environment, and say what is missing where that fails.

    python tools/environment.py DIRECTORY

Debian and Ubuntu ship `venv` without the part that brings pip (package `python3-venv`). As root that package
is installed here; otherwise the message names it. Runs under the system's Python: standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def main() -> int:
    directory = Path(sys.argv[1])
    if make(directory):
        return 0
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    if root and shutil.which("apt-get"):
        print(f"set-up: installing {package} with apt-get", file=sys.stderr)
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], check=False)
        if make(directory):
            return 0
    print(
        f"Could not make a virtual environment with {sys.executable}.\n"
        f"On Debian or Ubuntu: sudo apt-get install {package}\n"
        "Elsewhere: install a complete Python 3.11 or newer, and name it with make PYTHON=/path/to/python3",
        file=sys.stderr,
    )
    return 1


def make(directory: Path) -> bool:
    """True when the environment is there and has pip; a half-made one is removed, or make trusts it."""
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], capture_output=True, text=True)
    if done.returncode == 0:
        return True
    print((done.stdout + done.stderr).strip(), file=sys.stderr)
    shutil.rmtree(directory, ignore_errors=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
