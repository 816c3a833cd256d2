"""Facts about the build VM as one JSON line. Runs on Python 3.5 or newer, so that a too old version can be reported."""

import json
import os
import platform
import pwd
import sys
import time
from pathlib import Path


def system() -> str:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split("=", 1)[1].strip().strip('"') for line in lines if line.startswith("PRETTY_NAME=")]
    return names[0] if names else platform.system()


def user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def main() -> None:
    facts = {
        "system": system(),
        "machine": platform.machine(),
        "python": list(sys.version_info[:3]),
        "user": user(),
        "clock": time.time(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
