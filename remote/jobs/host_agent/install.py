"""Puts a program on this host. It comes before every other file of ours, so its text is sent as `python -c`.

    python -c THIS FOLDER NAME SIZE     paths and texts in turn, apart by NUL, SIZE bytes, on standard input

The program is made beside its place and renamed into it: it is there whole or not at all. If two install it at once,
the first one's files stay.
"""

import os
import sys

REFUSED, CUT_SHORT = 3, 4  # as in `remote.jobs.host_agent.util`, which is not here yet


def main() -> int:
    folder, name, size = sys.argv[1:]
    content = sys.stdin.buffer.read(int(size))
    if len(content) != int(size):
        sys.stderr.write("the program arrived cut short")
        return CUT_SHORT
    place = f"{folder}/{name}"
    made, parts = f"{place}.{os.getpid()}.part", iter(content.decode().split("\0"))
    try:
        for path in parts:
            write(f"{made}/{path}", next(parts))
        if not os.path.isdir(place):
            os.rename(made, place)
    except OSError as error:
        if not os.path.isdir(place):
            sys.stderr.write(str(error))
            return REFUSED
    finally:
        remove(made)
    return 0


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def remove(made: str) -> None:
    """What is left of the folder; an error is not worth more than the one before it."""
    try:
        for folder, _, names in os.walk(made, topdown=False):
            for name in names:
                os.unlink(f"{folder}/{name}")
            os.rmdir(folder)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
