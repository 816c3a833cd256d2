"""`fleet.after_success: teardown`: `inv bench` ends with what `inv teardown` does.

Only after every trial succeeded and all files are here, verified and sealed; else the fleet is kept, and a line says
why.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from invoke.context import Context

from bench.records.checksummed import ResultError
from bench.records.paths import QUALITY_FILE
from bench.records.quality import LossCheck, QualityRecord
from bench.records.run import RunRecord
from remote.hosts.base import Host
from tasks.cli.flags import load_target
from tasks.clients.cluster import confirm_production, resolve_target
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError, translate_errors
from tasks.fleet.collect import collect_run
from tasks.fleet.run_store import open_run
from tasks.settings.load import Settings

TEARDOWN = "teardown"


def check(settings: Settings, *, yes: bool, dry_run: bool) -> None:
    """Print that a teardown will follow, and confirm it if the cluster looks like production.

    Raises UsageError without a cluster, and ConfirmationRequired.
    """
    if settings.fleet.after_success != TEARDOWN:
        return
    if not settings.connector.is_cluster:
        raise UsageError(
            "fleet.after_success: teardown: fleet.kind is local, which has nothing to tear down",
            remedy="set it to keep",
        )
    if not dry_run:
        confirm_production(settings, resolve_target(settings), yes=yes)
    print("after success: everything is collected and verified, then the fleet is torn down (`inv teardown`)")


@contextlib.contextmanager
def teardown_after(context: Context, settings: Settings) -> Iterator[None]:
    """Run the block, which ends with `collect`; then tear the fleet down, or say in one line why it is kept."""
    if settings.fleet.after_success != TEARDOWN:
        yield
        return
    try:
        yield
    except TaskFailed as error:
        print(f"fleet.after_success: nothing is torn down: {error.problem}", flush=True)
        raise
    print("fleet.after_success: everything succeeded and is here: the fleet is torn down", flush=True)
    delete_fleet = load_target("tasks.cluster.deploy:delete_fleet")
    delete_fleet(context, dry_run=False, yes=True, discard_results=False)


def collect(settings: Settings, run: RunRecord, folder: Path, hosts: Sequence[Host]) -> None:
    """Collect a run that succeeded, with the runs of its comparison of losses, if a teardown follows.

    Raises a task's error if something is not here.
    """
    if settings.fleet.after_success != TEARDOWN:
        return
    checks: Sequence[LossCheck] = ()
    if (folder / QUALITY_FILE).exists():
        with translate_errors(ConfirmationRequired, ResultError):
            checks = QualityRecord.read(folder / QUALITY_FILE).checks
    others = [open_run(settings, run_id) for each in checks for run_id in each.run_ids]
    for each_run, each_folder in ((run, folder), *others):
        collect_run(settings, each_run, each_folder, hosts)
