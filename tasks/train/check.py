"""`inv data.check`: one worker reads the data as a training would, and what it found is shown.

Every worker has the same files (`inv train` refuses others), so one is asked. Examples are kept in its work folder: the
next look, and the training, read them from there.
"""

import json
from pathlib import Path

from invoke.context import Context

from bench.records import schema
from tasks.cli.terminal import console
from tasks.clients.workers import workers
from tasks.errors import file_errors
from tasks.settings.load import load
from tasks.train import forecast, output, trial_spec


def check_data(context: Context, page: str | None, *, as_json: bool) -> None:
    settings = load(context)
    hosts = workers(settings)
    trial = trial_spec.trial_of(settings, None, workers=trial_spec.how_many(settings, None), max_hours=None)
    found = forecast.ask(settings, hosts, trial)
    if as_json:
        print(json.dumps(schema.to_json(found.data), indent=1, ensure_ascii=False))
        return
    predicted = forecast.predict(settings, trial, found)
    output.show(console(), found.data, settings, predicted)
    if page is not None:
        with file_errors(f"data.check: --page: {page}", "; name another file"):
            Path(page).write_text(output.page(found.data, settings, predicted), encoding="utf-8")
        print(page)
