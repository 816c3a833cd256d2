"""Program that prints a training's attempts on the shared volume, as one JSON document.

    python -c THIS RUN_FOLDER TRIAL_ID PROGRESS_FILE LOSS_FILE RESTARTS_FILE END_FILE

`attempts`: of each attempt's folder number, first and last modification time (Unix time, s), and the JSON in its
LOSS_FILE, or null. `progress`: the JSON in the last attempt's PROGRESS_FILE, or null. `restarts`: the JSON in
RESTARTS_FILE, a path in the run's folder, or null.
`has_ended`: whether END_FILE is in the run's folder.
"""

from __future__ import annotations

import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def list_attempts(run_folder: str, trial_id: str, loss_file: str) -> list[tuple[int, float, float, Any]]:
    attempts = []
    for name in os.listdir(run_folder) if os.path.isdir(run_folder) else []:
        match = re.fullmatch(re.escape(trial_id) + "[.]([0-9]{1,9})", name)
        if match:
            folder = os.path.join(run_folder, name)
            times = [entry.stat().st_mtime for entry in os.scandir(folder)] or [os.stat(folder).st_mtime]
            attempts.append((int(match[1]), min(times), max(times), read_json(os.path.join(folder, loss_file))))
    return sorted(attempts, key=lambda attempt: attempt[0])


def read_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def main() -> None:
    run_folder, trial_id, progress_file, loss_file, restarts_file, end_file = sys.argv[1:]
    attempts, progress = list_attempts(run_folder, trial_id, loss_file), None
    if attempts:
        progress = read_json(os.path.join(run_folder, f"{trial_id}.{attempts[-1][0]}", progress_file))
    restarts = read_json(os.path.join(run_folder, restarts_file))
    has_ended = os.path.exists(os.path.join(run_folder, end_file))
    state = {"attempts": attempts, "progress": progress, "restarts": restarts, "has_ended": has_ended}
    sys.stdout.write(json.dumps(state) + "\n")


if __name__ == "__main__":
    main()
