"""Commands of `inv`. A command reads the settings, plans, acts and prints; the work is in remote and reports.

Only light modules may be imported here and at the top of a commands module: `inv --list` imports all of them.
"""

import importlib

from invoke.collection import Collection

from remote.providers import PROVIDERS
from tasks.adapter import commands as adapter
from tasks.cluster.commands import deploy, logs, nodes, shell, status, teardown
from tasks.doctor import commands as doctor
from tasks.fleet.commands import bench, cancel, collect, monitor
from tasks.image import commands as image
from tasks.reports.commands import compare, report, runs, tensorboard
from tasks.train import commands as train
from tasks.tuning.commands import tune

ns = Collection(
    *(
        bench,
        image.build,
        cancel,
        collect,
        compare,
        deploy,
        doctor.doctor,
        monitor,
        nodes,
        image.push,
        report,
        runs,
        teardown,
        tensorboard,
    ),
    *(train.train, tune),
    *(status, shell, logs),
    adapter.chat,
    Collection("adapter", adapter.check, adapter.merge, adapter.push),
    Collection("data", train.check),
    Collection("image", image.archive, image.bom, image.load, image.lock, image.show, image.size, image.verify),
    Collection("model", image.demo, image.fetch),
    *(
        Collection.from_module(importlib.import_module(module), name=name)
        for provider in PROVIDERS.values()
        for name, module in provider.commands.items()
    ),
    Collection("serve", adapter.served, adapter.start, adapter.stop),
    Collection("vm", image.check, image.engine),
)
for collection in (ns, *ns.collections.values()):
    for task in collection.tasks.values():
        task.auto_shortflags = False  # the same letter would mean different things in different tasks
