"""What a run becomes in the formats of other tools, read by those tools' own code where it is installed.

`pip install tensorboard wandb mlflow-skinny mlperf-logging`; of optimum-benchmark, without what it depends on,
`pip install --no-deps optimum-benchmark` and `pip install hydra-core flatten-dict`. CI has none of them.
"""

import json
import struct
import warnings

import pytest

from reports.exports.log_model import read_logged_runs
from reports.exports.write import export
from tests.support.reports import synthetic, training_run

LEFT = "is not installed; this file's first lines say how"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    synthetic.write_run(folder, synthetic.record(workers=1))
    export(folder, ["mlflow", "optimum-benchmark", "mlperf", "tensorboard"])
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = training_run.write_run_with_adapter(tmp_path_factory.mktemp("trained"))
    export(folder, ["mlflow", "mlperf", "tensorboard"])
    return folder


def their(module):
    """Another tool's module. Its own warnings are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(module, reason=f"{module.split('.')[0]} {LEFT}")


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_every_step_and_a_cut_file_up_to_the_cut(trained):
    reader = their("tensorboard.backend.event_processing.event_accumulator")

    def read(folder):
        found = reader.EventAccumulator(str(folder))
        found.Reload()
        return {
            tag: [(scalar.step, scalar.value) for scalar in found.Scalars(tag)] for tag in found.Tags()["scalars"]
        }, found

    scalars, found = read(trained / "report" / "tensorboard" / "train")
    assert scalars["train/loss"] == [(1, 2.0), (2, 1.0)]
    assert scalars["held_out/loss"] == [(0, 2.0), (2, 1.5)]
    assert b"| training.rows_per_step | 4 |" in found.Tensors("settings")[0].tensor_proto.string_val[0]
    (path,) = (trained / "report" / "tensorboard" / "train").iterdir()
    cut = trained / "cut" / path.name
    cut.parent.mkdir()
    cut.write_bytes(path.read_bytes()[:-40])
    assert read(cut.parent)[0]["train/loss"] == [(1, 2.0), (2, 1.0)]
    assert "held_out/low" in scalars
    assert [step for step, _ in read(cut.parent)[0]["held_out/loss"]] == [0]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_parameters_curves_final_values_and_the_adapter(trained, monkeypatch):
    mlflow = their("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # from 3.13 on it refuses file stores without that
    client = mlflow.MlflowClient(tracking_uri=(trained / "report" / "mlflow").as_uri())
    (experiment,) = client.search_experiments()
    (run,) = client.search_runs([experiment.experiment_id])
    assert (experiment.name, run.info.run_name, run.info.status) == ("r", "train", "FINISHED")
    assert run.data.params["training.rows_per_step"] == "4"
    assert run.data.metrics["held_out_loss"] == 1.5
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in history] == [(1, 2.0), (2, 1.0)]
    assert [list_artifact.path for list_artifact in client.list_artifacts(run.info.run_id, "adapter")] == [
        "adapter/adapter_model.safetensors"
    ]


@pytest.mark.filterwarnings("ignore")
def test_optimum_benchmark_reads_config_and_report(bench):
    benchmark = their("optimum_benchmark.benchmark.base").Benchmark
    (trial, *_) = read_logged_runs(bench)
    read = benchmark.from_json(bench / "report" / "optimum-benchmark" / trial.name / "benchmark.json")
    assert read.report.train.latency.p50 == trial.results["step_time_sec"]
    assert read.report.train.latency.count == 15
    assert read.config.scenario["lora_rank"] == 16
    assert "count" in read.report.to_markdown_text()


def test_mlperfs_parser_takes_every_line(bench, trained):
    parser = their("mlperf_logging.compliance_checker.mlp_parser")
    lines, failed = parser.parse_file(str(bench / "report/mlperf/baseline.worker-1.log"), ruleset="5.1.0")
    assert failed == []
    assert [line.key for line in lines].count("tracked_stats") == 18
    assert lines[-1].value["metadata"]["status"] == "success"
    lines, failed = parser.parse_file(str(trained / "report/mlperf/train.log"), ruleset="5.1.0")
    assert failed == []
    assert [line.value["value"] for line in lines if line.key == "eval_accuracy"] == [2.0, 1.5]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandbs_offline_run_holds_every_step_for_wandb_sync(trained):
    """Its records are read with its own message types. `wandb sync` itself was not tried: it needs its server."""
    records = their("wandb.proto.wandb_internal_pb2")
    export(trained, ["wandb"])
    (path,) = (trained / "report" / "wandb").glob("offline-run-*/run-*.wandb")
    found = [records.Record.FromString(record) for record in _records(path.read_bytes())]
    (run,) = (one.run for one in found if one.HasField("run"))
    assert (run.project, run.run_group, run.display_name) == ("qlora-fleet", "r", "r/train")
    losses = {}
    for one in found:
        if one.HasField("history"):
            values = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in one.history.item}
            losses[values["_step"]] = values.get("train/loss"), values.get("held_out/loss")
    assert losses == {0: (None, 2), 1: (2, None), 2: (1, 1.5)}


def _records(content):
    """The records of a .wandb file: LevelDB's log, in blocks of 32 KiB after a head of 7 bytes."""
    at, part = 7, b""
    while at < len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        part += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            yield part
            part = b""
