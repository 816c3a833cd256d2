"""When each attempt was started, by the operator's clock: the one thing a report reads in a run's ledger.

A worker's own clock will not do to add up the time it was held: a pod that moves goes on with another node's clock.

Not covered: a job that its host could only start later than the ledger says (the host could not be reached).
"""

import io
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from bench.records import schema
from bench.records.durable import read_regular
from bench.records.layout import LEDGER_FILE

# (trial_id, attempt) -> seconds since 1970
Starts = Mapping[tuple[str, int], float]

MOST_BYTES = 64_000_000  # a run of 10,000 trials writes 6 MB
_MOST_LINE_BYTES = 100_000


def read(run_folder: Path) -> Starts:
    """The started attempts of the ledger in `run_folder`; none where there is no ledger. Raises OSError.

    A line that is none (a crash tears the last one) leaves its attempt out: who asks for it goes by another clock.
    """
    try:
        content = read_regular(run_folder / LEDGER_FILE, most_bytes=MOST_BYTES, follow=False)
    except FileNotFoundError:
        return {}
    found = {}
    for line in io.BytesIO(content):
        # Of ten thousand trials most lines say something else.
        if b'"started"' not in line or len(line) > _MOST_LINE_BYTES:
            continue
        try:
            event = schema.parse(line)
            if event["event"] == "started":
                found[event["trial_id"], event["attempt"]] = datetime.fromisoformat(event["time"]).timestamp()
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
    return found
