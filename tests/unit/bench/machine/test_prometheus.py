"""What Prometheus is shown of a trial: the text, by prometheus' own grammar, and what is left out."""

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
from bench.machine.prometheus import MetricsBoard, MetricsEndpoint, read, render
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
    made: Record = make_record(run_id="r", trial_id="t", worker="worker-0")
    return made


def values(text: str) -> dict[str, float]:
    """Each sample's value by its name and GPU's labels; every line that is no comment must be a sample."""
    found = {}
    *lines, end = text.splitlines()
    assert end == "# EOF"
    for line in lines:
        if not line.startswith("# "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert 'run="r",trial="t",worker="worker-0"' in match[2]
            reason = re.search(r'reason="(\w+)"', match[2])
            found[match[1].removeprefix("qlora_fleet_") + (f" {reason[1]}" if reason else "")] = float(match[3])
    return found


def test_a_trial_shows_its_steps_checkpoints_gpus_and_dollars(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    board = MetricsBoard(record, MetricsEndpoint(host="127.0.0.1", port=0, usd_per_gpu_hour=2.0))
    record.on_show, record.flop_per_token, record.fingerprint["gpu_name"] = board.tell, 1e9, "NVIDIA A10"
    record.shown = {"checkpoint_step": None, "restarts": 2, "validation_loss": 1.5}
    monkeypatch.setattr(prometheus, "_now", lambda: 1000.0)
    board.tell()
    monkeypatch.setattr(prometheus, "_now", lambda: 1500.0)
    record.shown["checkpoint_step"] = 1
    record.add_step(record.steps, seconds=2.0, loss=3.0, samples=4, tokens=100, useful=80)
    found = values(render(read(board.handles[0]), [ROW]))
    board.close()
    assert (found["steps_done"], found["step_time_seconds"], found["loss"]) == (1, 2.0, 3.0)
    assert (found["useful_tokens_per_second"], found["validation_loss"], found["restarts"]) == (40.0, 1.5, 2)
    assert found["checkpoint_timestamp_seconds"] == found["progress_timestamp_seconds"] == 1500.0
    assert found["mfu_ratio"] == pytest.approx(40e9 / 125e12)
    assert 0 < found["cost_dollars"] < 1
    assert (found["gpu_power_watts"], found["gpu_sm_clock_hertz"]) == (120.5, 1.71e9)
    assert (found["gpu_throttled hw_thermal_slowdown"], found["gpu_throttled hw_power_brake"]) == (1.0, 0.0)
    assert not any(name.startswith("step_") and name != "step_time_seconds" for name in found), "no series for a step"


def test_what_is_unknown_is_left_out_and_names_cannot_break_a_line() -> None:
    assert render({}, [{}]) == "# EOF\n"
    state = {"labels": {"run": 'a"\n\\b'}, "step": 1, "loss": None}
    (sample,) = [line for line in render(state, []).splitlines() if not line.startswith("#")]
    assert SAMPLE.fullmatch(sample)
    assert sample.endswith(" 1")


def test_a_state_that_is_half_written_is_no_state(record: Record) -> None:
    board = MetricsBoard(record, MetricsEndpoint(host="127.0.0.1", port=0))
    assert read(board.handles[0]) == {}
    board.file.write(b'{"step": 1')
    board.file.flush()
    assert read(board.handles[0]) == {}
    board.close()


@pytest.mark.parametrize("text", ["9400", "{}", '{"host": "", "port": 70000}', '{"host": "", "port": "x"}', "{"])
def test_a_wrong_request_is_said_and_ends_no_trial(record: Record, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS_VARIABLE, text)
    assert telemetry._board(record) is None
    assert f"{METRICS_VARIABLE}: expected host and port as JSON" in record.log.tail[-1]


def test_a_port_that_is_taken_is_said_and_ends_no_trial(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv(METRICS_VARIABLE, json.dumps({"host": "127.0.0.1", "port": port}))
        assert telemetry._board(record) is None
    assert f"metrics: port {port}: Address already in use; going on without /metrics" in record.log.tail[-1]
    monkeypatch.delenv(METRICS_VARIABLE)
    assert telemetry._board(record) is None


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((OVERLAY / "dashboard.json").read_text())
    return found


def test_dashboard_and_alerts_ask_for_what_is_shown(dashboard: dict[str, Any]) -> None:
    shown = {f"qlora_fleet_{one[0]}" for one in (*prometheus._OF_TRIAL, *prometheus._OF_GPU)} | {
        "qlora_fleet_gpu_throttled"
    }
    panels = dashboard["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    (group,) = yaml.safe_load((OVERLAY / "alerts.yaml").read_text())["spec"]["groups"]
    assert len(group["rules"]) == 3
    variables = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    asked = [*queries, *variables, *(rule["expr"] for rule in group["rules"])]
    assert {name for text in asked for name in re.findall(r"qlora_fleet_\w+", text)} <= shown


def test_each_panel_of_the_dashboard_has_a_place_and_a_number_of_its_own_and_asks_the_chosen_prometheus(
    dashboard: dict[str, Any],
) -> None:
    panels = dashboard["panels"]
    for names in ([panel["id"] for panel in panels], [panel["title"] for panel in panels]):
        assert len(set(names)) == len(names)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "no two panels overlap"
    assert all(0 <= x < 24 for x, _ in cells), "Grafana's grid is 24 wide"
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    asks = [*panels, *(target for panel in panels for target in panel["targets"]), variables["run"]]
    assert all(ask["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for ask in asks)
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    assert used == variables.keys()


def test_grafanas_own_reader_knows_every_field_of_the_dashboard(dashboard: dict[str, Any]) -> None:
    """Read into the models of Grafana's SDK and written again: what they do not know would be gone."""
    sdk = pytest.importorskip("grafana_foundation_sdk", reason="pip install '.[tools]' brings Grafana's SDK")
    models, cog = f"{sdk.__name__}.models", f"{sdk.__name__}.cog"
    importlib.import_module(f"{cog}.plugins").register_default_plugins()
    read = importlib.import_module(f"{models}.dashboard").Dashboard.from_json(copy.deepcopy(dashboard))
    again = json.loads(importlib.import_module(f"{cog}.encoder").JSONEncoder().encode(read))
    assert kept(dashboard, again) == dashboard
    units = {var for var in vars(importlib.import_module(f"{models}.units")).values() if isinstance(var, str)}
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in dashboard["panels"]} <= units


def kept(ours: Any, theirs: Any) -> Any:
    """Of `theirs` what `ours` has, too."""
    if isinstance(ours, dict):
        return {key: kept(value, theirs[key]) for key, value in ours.items() if key in theirs}
    if isinstance(ours, list) and len(ours) == len(theirs):
        return [kept(*pair) for pair in zip(ours, theirs, strict=True)]
    return theirs
