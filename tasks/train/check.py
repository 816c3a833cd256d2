"""`inv data.check`: have one worker read the data as a training would, and print its report.

One worker is enough, because all have the same files (`inv train` checks that). The tokenized examples are cached in
its work folder, for the next check and for the training.
"""

from pathlib import Path

from invoke.context import Context

from bench.records import schema
from tasks.cli.terminal import console, json_output
from tasks.clients.workers import fleet_hosts
from tasks.errors import file_errors
from tasks.settings.load import load
from tasks.train import forecast, output, trial_spec


def check_data(context: Context, out: str | None, *, as_json: bool) -> None:
    """Print the data report and the forecast; `page` is the path of an HTML page to write."""
    settings = load(context)
    hosts = fleet_hosts(settings)
    trial = trial_spec.make_trial(settings, None, workers=trial_spec.worker_count(settings, None), max_hours=None)
    probe = forecast.probe_workers(settings, hosts, trial)
    if as_json:
        with json_output(as_json) as print_json:
            print_json({"kind": "data.check", "schema_version": 1, **schema.to_json(probe.data)})
        return
    predicted = forecast.predict(settings, trial, probe)
    output.show_report(console(), probe.data, settings, predicted)
    if out is not None:
        with file_errors(f"data.check: --out: {out}", "; name another file"):
            Path(out).write_text(output.html_page(probe.data, settings, predicted), encoding="utf-8")
        print(out)
