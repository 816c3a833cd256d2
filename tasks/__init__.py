"""The operator's verbs. A task body reads the settings, plans, acts, prints; the work is in remote and reports.

Nothing heavy may be imported here or at the top of a verbs module: `inv --list` reads all of them.
"""

from invoke.collection import Collection

from tasks.adapter import verbs as adapter
from tasks.cluster.verbs import deploy, logs, nodes, shell, status, teardown
from tasks.doctor import verbs as doctor
from tasks.fleet.verbs import bench, cancel, collect, monitor
from tasks.image import verbs as image
from tasks.reports.verbs import compare, report, runs, tensorboard
from tasks.tenancy import verbs as tenancy
from tasks.train import verbs as train
from tasks.tuning.verbs import tune

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
    Collection("tenancy", tenancy.kubeconfig, tenancy.nodes, tenancy.prices, tenancy.repository, tenancy.show),
    Collection("serve", adapter.served, adapter.start, adapter.stop),
    Collection("vm", image.check, image.engine),
)
for collection in (ns, *ns.collections.values()):
    for one in collection.tasks.values():
        one.auto_shortflags = False  # one letter would mean different things in different tasks
