"""Program that links a job's output folder to a shared volume and becomes the job's command.

    python -c THIS TARGET LINK RESULT_FILE RANK_VARIABLE COMMAND...    LINK is the output folder, TARGET the shared one

It exits 0 if TARGET has a result already, and 127 if another worker has started this attempt. Only rank 0 writes
output.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    target, link, result_file, rank_variable, *command = sys.argv[1:]
    try:
        if os.environ.get(rank_variable, "0") == "0":
            os.symlink(target, link)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                os.mkdir(target)
            except FileExistsError:
                if os.path.exists(os.path.join(target, result_file)):
                    return 0
                sys.stderr.write(f"{target}: this attempt was started by another worker that is gone\n")
                return 127
        os.execvp(command[0], command)  # noqa: S606 - no shell
    except OSError as error:
        sys.stderr.write(f"{error.filename}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main())
