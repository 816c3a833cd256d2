"""Exports to other tools, read by those tools' own code if it is installed.

Install with `pip install tensorboard wandb`. CI has no wandb.
"""

import json
import struct
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
def test_wandbs_offline_run_holds_every_step_for_wandb_sync(trained):
    """Read the records with wandb's message types. `wandb sync` itself is not tested: it needs its server."""
    records = import_tool("wandb.proto.wandb_internal_pb2")
    export(trained, ["wandb"])
    (path,) = (trained / "report" / "wandb").glob("offline-run-*/run-*.wandb")
    messages = [records.Record.FromString(record) for record in _records(path.read_bytes())]
    (run,) = (message.run for message in messages if message.HasField("run"))
    assert (run.project, run.run_group, run.display_name) == ("qlora-fleet", "r", "r/train")
    losses = {}
    for message in messages:
        if message.HasField("history"):
            values = {
                ".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in message.history.item
            }
            losses[values["_step"]] = values.get("train/loss"), values.get("held_out/loss")
    assert losses == {0: (None, 2), 1: (2, None), 2: (1, 1.5)}


def _records(content):
    """Yield the records of a .wandb file: a LevelDB log in blocks of 32 KiB after a header of 7 bytes."""
    offset, part = 7, b""
    while offset < len(content):
        if (remaining := 32768 - offset % 32768) < 7:
            offset += remaining
            continue
        _, length, kind = struct.unpack("<IHB", content[offset : offset + 7])
        part += content[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield part
            part = b""
