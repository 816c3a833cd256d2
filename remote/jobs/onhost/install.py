"""Puts a program on this host. It comes before every other file of ours, so its text is sent as `python -c`.

    python -c THIS FOLDER NAME SIZE     JSON of {path: text}, SIZE bytes, on standard input

The program is made beside its place and renamed into it: it is there whole or not at all. If two install it at once,
the first one's files stay.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

REFUSED, CUT_SHORT = 3, 4  # as in `remote.jobs.onhost.basics`, which is not here yet


def main() -> int:
    folder, name, size = sys.argv[1:]
    content = sys.stdin.buffer.read(int(size))
    if len(content) != int(size):
        sys.stderr.write("the program arrived cut short")
        return CUT_SHORT
    place = Path(folder, name)
    made = place.with_name(f"{name}.{os.getpid()}.part")
    try:
        for path, text in json.loads(content).items():
            write(made / path, text)
        if not place.is_dir():
            made.rename(place)
    except OSError as error:
        if not place.is_dir():
            sys.stderr.write(str(error))
            return REFUSED
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return 0


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    sys.exit(main())
