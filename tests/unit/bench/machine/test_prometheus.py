"""The /metrics text of a trial in Prometheus' grammar, and the dashboard and alerts that read it."""

import copy
import importlib
import json
import re
import socket
from typing import Any

import pytest
import yaml

from bench.harness.record import Record
from bench.machine import prometheus, telemetry
from bench.machine.prometheus import MetricsEndpoint, MetricsPublisher, read_state, render
from bench.records.paths import METRICS_VARIABLE
from tests.support.paths import ROOT

OVERLAY = ROOT / "manifests" / "overlays" / "metrics"
SAMPLE = re.compile(r'(qlora_fleet_[a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\} (-?[0-9.e+-]+)')
ROW = {
    "gpu": 0, "gpu_power_watts": 120.5, "gpu_sm_clock_mhz": 1710, "gpu_temperature_celsius": 55,
    "gpu_memory_used_bytes": 1 << 30, "gpu_utilization_percent": 97, "gpu_clock_limits": "hw_thermal_slowdown idle",
}  # fmt: skip


@pytest.fixture
def record(make_record: Any) -> Record:
    new_record: Record = make_record(run_id="r", trial_id="t", worker="worker-0")
    return new_record


def values(text: str) -> dict[str, float]:
    """Map each sample's name and reason to its value; every line except comments must be a sample."""
    samples = {}
    *lines, end = text.splitlines()
    assert end == "# EOF"
    for line in lines:
        if not line.startswith("# "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert 'run="r",trial="t",worker="worker-0"' in match[2]
            reason = re.search(r'reason="(\w+)"', match[2])
            samples[match[1].removeprefix("qlora_fleet_") + (f" {reason[1]}" if reason else "")] = float(match[3])
    return samples


def test_a_trial_shows_its_steps_checkpoints_gpus_and_dollars(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = MetricsPublisher(record, MetricsEndpoint(host="127.0.0.1", port=0, usd_per_gpu_hour=2.0))
    record.on_progress, record.flop_per_token, record.fingerprint["gpu_name"] = publisher.publish, 1e9, "NVIDIA A10"
    record.extra_progress = {"checkpoint_step": None, "restarts": 2, "validation_loss": 1.5}
    monkeypatch.setattr(prometheus, "_now", lambda: 1000.0)
    publisher.file.write(b'{"step": 1')
    publisher.file.flush()
    assert read_state(publisher.descriptors[0]) == {}, "a partial state"
    publisher.publish()
    monkeypatch.setattr(prometheus, "_now", lambda: 1500.0)
    record.extra_progress["checkpoint_step"] = 1
    record.add_step(record.steps, seconds=2.0, loss=3.0, samples=4, tokens=100, useful=80)
    samples = values(render(read_state(publisher.descriptors[0]), [ROW]))
    publisher.close()
    assert (samples["steps_done"], samples["step_time_seconds"], samples["loss"]) == (1, 2.0, 3.0)
    assert (samples["useful_tokens_per_second"], samples["validation_loss"], samples["restarts"]) == (40.0, 1.5, 2)
    assert samples["checkpoint_timestamp_seconds"] == samples["progress_timestamp_seconds"] == 1500.0
    assert samples["mfu_ratio"] == pytest.approx(40e9 / 125e12)
    assert 0 < samples["cost_dollars"] < 1
    assert (samples["gpu_power_watts"], samples["gpu_sm_clock_hertz"]) == (120.5, 1.71e9)
    assert (samples["gpu_throttled hw_thermal_slowdown"], samples["gpu_throttled hw_power_brake"]) == (1.0, 0.0)
    assert not any(name.startswith("step_") and name != "step_time_seconds" for name in samples), "no series per step"


def test_unknown_values_are_left_out_and_labels_are_escaped() -> None:
    assert render({}, [{}]) == "# EOF\n"
    state = {"labels": {"run": 'a"\n\\b'}, "step": 1, "loss": None}
    (sample,) = [line for line in render(state, []).splitlines() if not line.startswith("#")]
    assert SAMPLE.fullmatch(sample)
    assert sample.endswith(" 1")


def test_an_unusable_endpoint_is_logged_and_does_not_end_the_trial(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert telemetry._open_publisher(record) is None
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = json.dumps({"host": "127.0.0.1", "port": (port := other.getsockname()[1])})
        for text in ("9400", "{}", '{"host": "", "port": 70000}', '{"host": "", "port": "x"}', "{", taken):
            monkeypatch.setenv(METRICS_VARIABLE, text)
            assert telemetry._open_publisher(record) is None
            reason = f"port {port}: Address already in use; " if text == taken else f"{METRICS_VARIABLE}: "
            assert reason in record.log.tail[-1]


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((OVERLAY / "dashboard.json").read_text())
    return document


def test_dashboard_and_alerts_query_only_published_metrics(dashboard: dict[str, Any]) -> None:
    published = {f"qlora_fleet_{entry[0]}" for entry in (*prometheus._TRIAL_METRICS, *prometheus._GPU_METRICS)} | {
        "qlora_fleet_gpu_throttled"
    }
    panels = dashboard["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    (group,) = yaml.safe_load((OVERLAY / "alerts.yaml").read_text())["spec"]["groups"]
    assert len(group["rules"]) == 3
    variables = [entry["query"]["query"] for entry in dashboard["templating"]["list"] if entry["type"] == "query"]
    expressions = [*queries, *variables, *(rule["expr"] for rule in group["rules"])]
    assert {name for text in expressions for name in re.findall(r"qlora_fleet_\w+", text)} <= published


def test_panels_do_not_overlap_and_query_the_selected_prometheus(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (position["x"] + x, position["y"] + y)
        for position in (panel["gridPos"] for panel in panels)
        for x in range(position["w"])
        for y in range(position["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(0 <= x < 24 for x, _ in cells), "Grafana's grid is 24 wide"
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    queries = [*panels, *(target for panel in panels for target in panel["targets"]), variables["run"]]
    assert all(query["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for query in queries)
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    assert used == variables.keys()


def test_grafanas_models_know_every_field_of_the_dashboard(dashboard: dict[str, Any]) -> None:
    """Round-trip through the models of Grafana's SDK, which drop unknown fields."""
    sdk = pytest.importorskip("grafana_foundation_sdk", reason="pip install '.[tools]' installs Grafana's SDK")
    models, cog = f"{sdk.__name__}.models", f"{sdk.__name__}.cog"
    importlib.import_module(f"{cog}.plugins").register_default_plugins()
    read = importlib.import_module(f"{models}.dashboard").Dashboard.from_json(copy.deepcopy(dashboard))
    rewritten = json.loads(importlib.import_module(f"{cog}.encoder").JSONEncoder().encode(read))
    assert common_part(dashboard, rewritten) == dashboard
    units = {var for var in vars(importlib.import_module(f"{models}.units")).values() if isinstance(var, str)}
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in dashboard["panels"]} <= units


def common_part(ours: Any, theirs: Any) -> Any:
    """Return the parts of `theirs` that `ours` has too."""
    if isinstance(ours, dict):
        return {key: common_part(value, theirs[key]) for key, value in ours.items() if key in theirs}
    if isinstance(ours, list) and len(ours) == len(theirs):
        return [common_part(*pair) for pair in zip(ours, theirs, strict=True)]
    return theirs
