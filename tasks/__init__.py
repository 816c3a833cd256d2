"""The operator's verbs. A task body reads the settings, plans, acts, prints; the work is in remote and reports.

Nothing heavy may be imported here or at the top of a task's module: `inv --list` reads all of them.
"""

from __future__ import annotations

from invoke.collection import Collection

from tasks.cluster import deploy, nodes, status
from tasks.errors import exit_with_2_for_wrong_usage, explain_settings_failures
from tasks.fleet import bench, collect, monitor
from tasks.image import build, image, model, push, vm, vmengine
from tasks.reports import compare, report
from tasks.tuning import tune

explain_settings_failures()
exit_with_2_for_wrong_usage()

ns = Collection(
    bench.bench,
    bench.cancel,
    build.build,
    collect.collect,
    compare.compare,
    deploy.deploy,
    deploy.teardown,
    monitor.monitor,
    nodes.nodes,
    push.push,
    report.report,
    status.status,
    status.shell,
    status.logs,
    tune.tune,
    Collection("image", image.archive, image.load, image.lock, image.size, image.verify),
    Collection("model", model.demo, model.fetch),
    Collection("vm", vm.check, vmengine.engine),
)
