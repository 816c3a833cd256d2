"""Installer of a program on this host. It precedes every other file of ours, so its text is sent as `python -c`.

    python -c THIS FOLDER NAME SIZE     alternating paths and texts, separated by NUL, SIZE bytes, on standard input

The program is written to a temporary folder and renamed, so it is complete or absent. If two processes install it at
once, the files of the first one stay.
"""

import os
import sys

EXIT_REFUSED, EXIT_TRUNCATED = 4, 3  # as in `remote.agent.shared.wire`, not installed yet


def main() -> int:
    folder, name, size = sys.argv[1:]
    content = sys.stdin.buffer.read(int(size))
    if len(content) != int(size):
        sys.stderr.write("the program arrived truncated")
        return EXIT_TRUNCATED
    target = f"{folder}/{name}"
    temporary, fields = f"{target}.{os.getpid()}.part", iter(content.decode().split("\0"))
    try:
        for path in fields:
            write_text(f"{temporary}/{path}", next(fields))
        if not os.path.isdir(target):
            os.rename(temporary, target)
    except OSError as error:
        if not os.path.isdir(target):
            sys.stderr.write(f"{folder}: cannot be written: {error.strerror or error}")
            return EXIT_REFUSED
    finally:
        remove_tree(temporary)
    return 0


def write_text(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def remove_tree(root: str) -> None:
    """Remove the folder; errors are ignored, because an earlier one is reported."""
    try:
        for folder, _, names in os.walk(root, topdown=False):
            for name in names:
                os.unlink(f"{folder}/{name}")
            os.rmdir(folder)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
