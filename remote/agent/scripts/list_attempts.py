"""Program that prints a training's attempts on the shared volume, as one JSON document.

    python -c THIS RUN_FOLDER TRIAL_ID PROGRESS_FILE RESTARTS_FILE

`attempts`: number, first and last modification time (Unix time, s) of each attempt's folder. `progress`: the JSON in
the last attempt's PROGRESS_FILE, or null. `restarts`: the JSON in RESTARTS_FILE, a path in the run's folder, or null.
"""

from __future__ import annotations

import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def list_attempts(run_folder: str, trial_id: str) -> list[tuple[int, float, float]]:
    attempts = []
    for name in os.listdir(run_folder) if os.path.isdir(run_folder) else []:
        match = re.fullmatch(re.escape(trial_id) + "[.]([0-9]{1,9})", name)
        if match:
            folder = os.path.join(run_folder, name)
            times = [entry.stat().st_mtime for entry in os.scandir(folder)] or [os.stat(folder).st_mtime]
            attempts.append((int(match[1]), min(times), max(times)))
    return sorted(attempts)


def read_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def main() -> None:
    run_folder, trial_id, progress_file, restarts_file = sys.argv[1:]
    attempts, progress = list_attempts(run_folder, trial_id), None
    if attempts:
        progress = read_json(os.path.join(run_folder, f"{trial_id}.{attempts[-1][0]}", progress_file))
    restarts = read_json(os.path.join(run_folder, restarts_file))
    sys.stdout.write(json.dumps({"attempts": attempts, "progress": progress, "restarts": restarts}) + "\n")


if __name__ == "__main__":
    main()
