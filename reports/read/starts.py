"""When each attempt was started, by the operator's clock: the one thing a report reads in a run's ledger.

A worker's own clock will not do to add up the time it was held: a pod that moves goes on with another node's clock.

Not covered: a job that its host could only start later than the ledger says (the host could not be reached).
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from bench.records.layout import LEDGER_FILE

# (trial_id, attempt) -> seconds since 1970
Starts = Mapping[tuple[str, int], float]


def read(run_folder: Path) -> Starts:
    """The started attempts of the ledger in `run_folder`; none where there is no ledger. Raises OSError.

    A line that is none (a crash tears the last one) leaves its attempt out: who asks for it goes by another clock.
    """
    try:
        lines = (run_folder / LEDGER_FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    found = {}
    for line in lines:
        if b'"started"' not in line:  # of ten thousand trials most lines say something else
            continue
        try:
            event = json.loads(line)
            if event["event"] == "started":
                found[event["trial_id"], event["attempt"]] = datetime.fromisoformat(event["time"]).timestamp()
        except (ValueError, KeyError, TypeError):
            continue
    return found
