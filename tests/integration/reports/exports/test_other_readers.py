"""Exports to other tools, read by those tools' own code if it is installed.

Install with `pip install tensorboard wandb`. CI has no wandb.
"""

import warnings

import pytest

from reports.exports import export
from tests.support.reports import training_run

SKIP_REASON = "is not installed; see the docstring of this file"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return training_run.write_run(tmp_path_factory.mktemp("trained"))


def import_tool(module):
    """Import another tool's module without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(module, reason=f"{module.split('.')[0]} {SKIP_REASON}")


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_every_step_and_a_cut_file_up_to_the_cut(trained):
    reader = import_tool("tensorboard.backend.event_processing.event_accumulator")

    def read(folder):
        accumulator = reader.EventAccumulator(str(folder))
        accumulator.Reload()
        tags = accumulator.Tags()["scalars"]
        scalars = {tag: [(scalar.step, scalar.value) for scalar in accumulator.Scalars(tag)] for tag in tags}
        return scalars, accumulator

    export(trained, ["tensorboard"])
    scalars, events = read(trained / "report" / "tensorboard" / "train")
    assert scalars["train/loss"] == [(1, 2.0), (2, 1.0)]
    assert scalars["held_out/loss"] == [(0, 2.0), (2, 1.5)]
    assert b"| training.rows_per_step | 4 |" in events.Tensors("settings")[0].tensor_proto.string_val[0]
    (path,) = (trained / "report" / "tensorboard" / "train").iterdir()
    path.write_bytes(path.read_bytes()[:-40])
    cut, _ = read(path.parent)
    assert (cut["train/loss"], cut["held_out/loss"]) == ([(1, 2.0)], [(0, 2.0)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandbs_offline_run_holds_the_training_for_wandb_sync(trained):
    import_tool("wandb")
    export(trained, ["wandb"])
    (path,) = (trained / "report" / "wandb").glob("offline-run-*/run-*.wandb")
    content = path.read_bytes()
    assert all(name in content for name in (b"r/train", b"train/loss", b"held_out/loss"))
