"""Facts about the build VM as one JSON line. Runs on Python 3.5 or newer, so that a too old version can be reported."""

import grp
import json
import os
import platform
import pwd
import sys
import time
from pathlib import Path
from typing import Any, Callable  # collections.abc.Callable[...] needs Python 3.9


def system() -> str:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split("=", 1)[1].strip().strip('"') for line in lines if line.startswith("PRETTY_NAME=")]
    return names[0] if names else platform.system()


def name_of(lookup: Callable[[int], Any], number: int) -> str:
    try:
        return str(lookup(number)[0])
    except KeyError:
        return str(number)


def main() -> None:
    facts = {
        "system": system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": list(sys.version_info[:3]),
        "user": name_of(pwd.getpwuid, os.getuid()),
        "groups": sorted(name_of(grp.getgrgid, number) for number in {*os.getgroups(), os.getgid()}),
        "home": os.path.expanduser("~"),
        "clock": time.time(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
