"""A real Prometheus scrapes a trial's /metrics until the trial ends; promtool checks metrics, rules and alerts.

Not covered: the Prometheus operator, which turns PodMonitors into scrape configurations, and Grafana.
"""

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.harness.record import Request
from bench.harness.termination import StopSignals
from bench.machine import telemetry
from bench.records.paths import METRICS_VARIABLE
from tests.support.faults import wait_for
from tests.support.machines.ports import free_ports
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
ALERTS = ROOT / "manifests" / "overlays" / "metrics" / "alerts.yaml"
WAIT_SEC = 120.0


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Write the alerts as a Prometheus rule file."""
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump(yaml.safe_load(ALERTS.read_text())["spec"]))
    return path


def promtool(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run(("promtool", *arguments), input=stdin, capture_output=True, text=True, timeout=WAIT_SEC)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_prometheus_scrapes_a_trial_and_sees_when_it_is_gone(
    tmp_path: Path, make_record: Any, monkeypatch: pytest.MonkeyPatch, rules: Path
) -> None:
    prometheus_port, trial_port = free_ports(), free_ports()
    monkeypatch.setenv(METRICS_VARIABLE, json.dumps({"host": "127.0.0.1", "port": trial_port, "usd_per_gpu_hour": 2.0}))
    scrape = {"job_name": "t", "scrape_interval": "200ms", "static_configs": [{"targets": [f"127.0.0.1:{trial_port}"]}]}
    config = {"rule_files": [str(rules)], "scrape_configs": [scrape]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    argv = (
        *("prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"),
        *(f"--web.listen-address=127.0.0.1:{prometheus_port}", "--log.level=error"),
    )

    def query_series(query: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{prometheus_port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                series: list[dict[str, Any]] = json.loads(answer.read())["data"]["result"]
        except OSError:
            return []
        return series

    record = make_record(run_id="r", trial_id="t", worker="worker-0")
    with subprocess.Popen(argv, env={**os.environ, "GOMAXPROCS": "1"}, stderr=subprocess.DEVNULL) as server:
        try:
            with telemetry.record_telemetry(record):
                record.add_step(record.steps, seconds=2.0, loss=3.0, samples=4, tokens=100, useful=80)
                (loss,) = wait_for(lambda: query_series("qlora_fleet_loss"), "the loss", WAIT_SEC)
                assert loss["value"][1] == "3"
                labels = {name: loss["metric"][name] for name in ("run", "trial", "worker")}
                assert labels == {"run": "r", "trial": "t", "worker": "worker-0"}
                with urllib.request.urlopen(f"http://127.0.0.1:{trial_port}/metrics", timeout=60) as answer:
                    text = answer.read().decode()
                    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
                with pytest.raises(urllib.error.HTTPError):
                    urllib.request.urlopen(f"http://127.0.0.1:{trial_port}/", timeout=60)
            assert wait_for(lambda: query_series("up == 0"), "the trial to be gone", WAIT_SEC)
            assert wait_for(lambda: not query_series("qlora_fleet_loss"), "its series to end", WAIT_SEC)
        finally:
            server.kill()
    assert promtool("check", "metrics", stdin=text) == ""
    assert not any("metrics" in line and "without /metrics" in line for line in record.log.tail)


def test_a_further_machine_of_a_training_shows_its_gpus_and_no_step(
    tmp_path: Path, make_trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support" / "fakes"))
    monkeypatch.setenv("FAKE_NVML", "[{}]")
    monkeypatch.setenv(METRICS_VARIABLE, json.dumps({"host": "127.0.0.1", "port": (port := free_ports())}))
    request = Request(trial_file=tmp_path / "t.json", out=tmp_path, run_id="r", trial_id="t", worker="worker-1")

    def scraped() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
        return text if "gpu_power" in text else ""

    with telemetry.watch_gpus(request, make_trial(), StopSignals()):
        text = wait_for(scraped, "a reading of the GPU", WAIT_SEC)
    assert 'qlora_fleet_gpu_power_watts{run="r",trial="t",worker="worker-1",gpu="0"}' in text
    assert all("gpu=" in line for line in text.splitlines() if "{" in line)
    assert list(tmp_path.iterdir()) == []


def test_the_alerts_are_rules_that_fire_when_they_should(rules: Path, tmp_path: Path) -> None:
    panels = json.loads(ALERTS.with_name("dashboard.json").read_text())["panels"]
    queries = [target["expr"].replace("$run", ".*") for panel in panels for target in panel["targets"]]
    recordings = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    panel_rules = rules.with_name("panels.yml")
    panel_rules.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recordings}]}))
    output = promtool("check", "rules", str(rules), str(panel_rules))
    assert "SUCCESS: 3 rules found" in output
    assert f"SUCCESS: {len(queries)} rules found" in output, "Prometheus reads each panel's query"
    labels = 'run="r",trial="t",worker="w"'

    def case(series: str, values: str, name: str, at: str, fires: bool, **more: str) -> dict[str, Any]:
        (group,) = yaml.safe_load(rules.read_text())["groups"]
        (rule,) = [rule for rule in group["rules"] if rule["alert"] == name]
        label_values = {"run": "r", "trial": "t", "worker": "w", **more}
        summary = rule["annotations"]["summary"]
        for key, value in label_values.items():
            summary = summary.replace("{{ $labels." + key + " }}", value)
        alert = {"exp_labels": {**label_values, "severity": "warning"}, "exp_annotations": {"summary": summary}}
        return {
            "interval": "1m",
            "input_series": [{"series": series, "values": values}],
            "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": [alert] if fires else []}],
        }

    progress, checkpoint = (f"qlora_fleet_{name}_timestamp_seconds{{{labels}}}" for name in ("progress", "checkpoint"))
    hot = f'qlora_fleet_gpu_throttled{{{labels},gpu="0",reason="hw_thermal_slowdown"}}'
    tests = [
        case(progress, "0x60", "QloraFleetNoProgress", "20m", True),
        case(progress, "0+60x60", "QloraFleetNoProgress", "20m", False),
        case(hot, "1x30", "QloraFleetThrottled", "15m", True, gpu="0"),
        case(hot, "0x30", "QloraFleetThrottled", "15m", False, gpu="0"),
        case(checkpoint, "0x60", "QloraFleetCheckpointTooOld", "40m", True),
        case(checkpoint, "0x60", "QloraFleetCheckpointTooOld", "20m", False),
    ]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": [rules.name], "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yml"))
