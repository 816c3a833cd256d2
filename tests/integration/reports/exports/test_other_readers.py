"""Exports to other tools, read by those tools' own code if it is installed.

Install with `pip install tensorboard wandb mlflow-skinny mlperf-logging`, and optimum-benchmark, without its
dependencies, with `pip install --no-deps optimum-benchmark` and `pip install hydra-core flatten-dict`. CI has none.
"""

import json
import struct
import warnings

import pytest

from reports.exports import export
from reports.exports.log_model import read_logged_runs
from tests.support.reports import synthetic, training_run

SKIP_REASON = "is not installed; see the docstring of this file"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    synthetic.write_run(folder, synthetic.record(workers=1))
    export(folder, ["mlflow", "optimum-benchmark", "mlperf"])
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = training_run.write_run_with_adapter(tmp_path_factory.mktemp("trained"))
    export(folder, ["mlflow", "mlperf"])
    return folder


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
    assert cut["train/loss"] == [(1, 2.0), (2, 1.0)]
    assert "held_out/low" in scalars
    assert [step for step, _ in cut["held_out/loss"]] == [0]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_parameters_curves_final_values_and_the_adapter(trained, monkeypatch):
    mlflow = import_tool("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow requires this for file stores from 3.13 on
    client = mlflow.MlflowClient(tracking_uri=(trained / "report" / "mlflow").as_uri())
    (experiment,) = client.search_experiments()
    (run,) = client.search_runs([experiment.experiment_id])
    assert (experiment.name, run.info.run_name, run.info.status) == ("r", "train", "FINISHED")
    assert run.data.params["training.rows_per_step"] == "4"
    assert run.data.metrics["held_out_loss"] == 1.5
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 2.0), (2, 1.0)]
    assert [list_artifact.path for list_artifact in client.list_artifacts(run.info.run_id, "adapter")] == [
        "adapter/adapter_model.safetensors"
    ]


@pytest.mark.filterwarnings("ignore")
def test_optimum_benchmark_reads_config_and_report(bench):
    benchmark = import_tool("optimum_benchmark.benchmark.base").Benchmark
    (trial, *_) = read_logged_runs(bench)
    report = benchmark.from_json(bench / "report" / "optimum-benchmark" / trial.name / "benchmark.json")
    assert report.report.train.latency.p50 == trial.results["step_time_sec"]
    assert report.report.train.latency.count == 15
    assert report.config.scenario["lora_rank"] == 16
    assert "count" in report.report.to_markdown_text()


def test_mlperfs_parser_accepts_every_line(bench, trained):
    parser = import_tool("mlperf_logging.compliance_checker.mlp_parser")
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
