"""OpenMetrics text of a running trial at /metrics, for Prometheus. Off unless METRICS_VARIABLE is set.

The trial's process writes its state into one small block of an unlinked file at each step; the sampler's process serves
it together with its own readings of the GPUs, so a scrape does not slow the training down. There is one series per
quantity and GPU, never one per step. When the trial ends, the endpoint closes and Prometheus marks its series as stale.

In a training over several pods the first pod serves the numbers of all; the others serve their own GPUs.
"""

import contextlib
import http.server
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import IO, Any

from bench.harness.record import Record
from bench.machine import gpu_specs, nvml, sampler
from bench.records.paths import METRICS_VARIABLE
from bench.records.status import escape_controls

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_STATE_BYTES = 4096
# name, unit, help, key in the state; for a GPU: key in the row and factor
_TRIAL_METRICS = (
    ("steps_done", "", "Finished steps, including warm-up.", "step"),
    ("steps_planned", "", "Planned steps.", "steps"),
    ("elapsed_seconds", "seconds", "Time since this attempt began.", "elapsed_sec"),
    ("step_time_seconds", "seconds", "Time of the last step.", "step_time_sec"),
    ("useful_tokens_per_second", "", "Tokens a second of the last step, without padding.", "useful_tokens_per_sec"),
    ("loss", "", "Training loss of the last step.", "loss"),
    ("validation_loss", "", "Held-out loss per target token, last measured.", "validation_loss"),
    ("mfu_ratio", "ratio", "FLOP of the model over the chip's published matrix products.", "mfu"),
    ("progress_timestamp_seconds", "seconds", "When step or phase last changed.", "progress_at"),
    ("checkpoint_step", "", "The step of the newest checkpoint.", "checkpoint_step"),
    (
        "checkpoint_timestamp_seconds",
        "seconds",
        "When the newest checkpoint of this attempt was seen.",
        "checkpoint_at",
    ),
    ("restarts", "", "Restarts of the training.", "restarts"),
    ("cost_dollars", "dollars", "GPU hours of this attempt times the configured price.", "cost_usd"),
)
_GPU_METRICS = (
    ("gpu_power_watts", "watts", "Power.", "gpu_power_watts", 1.0),
    ("gpu_sm_clock_hertz", "hertz", "Clock of the processors.", "gpu_sm_clock_mhz", 1e6),
    ("gpu_temperature_celsius", "celsius", "Temperature.", "gpu_temperature_celsius", 1.0),
    ("gpu_memory_used_bytes", "bytes", "Memory in use.", "gpu_memory_used_bytes", 1.0),
    ("gpu_utilization_ratio", "ratio", "Share of time in which a kernel ran.", "gpu_utilization_percent", 0.01),
)


@dataclass(frozen=True, kw_only=True)
class MetricsEndpoint:
    """Address to listen on, and the price of a GPU hour if known."""

    host: str
    port: int
    usd_per_gpu_hour: float | None = None

    @classmethod
    def from_environment(cls) -> "MetricsEndpoint | None":
        """Parse METRICS_VARIABLE; None if it is not set. Raises ValueError."""
        text = os.environ.get(METRICS_VARIABLE, "")
        if not text:
            return None
        try:
            document = json.loads(text)
            price = document.get("usd_per_gpu_hour")
            port = int(document["port"])
            if not 0 <= port < 65536:
                raise ValueError
            return cls(host=str(document["host"]), port=port, usd_per_gpu_hour=None if price is None else float(price))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{METRICS_VARIABLE}: expected host and port as JSON, found {text[:60]!r}") from error


class MetricsPublisher:
    """The trial's side: publishes the state for the sampler and opens the socket that the sampler will serve."""

    def __init__(self, record: Record, endpoint: MetricsEndpoint) -> None:
        """Open the socket. Raises OSError, for example if the port is in use."""
        self._record, self._endpoint = record, endpoint
        self.socket = socket.create_server((endpoint.host, endpoint.port))
        self.port = self.socket.getsockname()[1]
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._last_position = (-1, "")
        self._progress_at = self._checkpoint_at = 0.0
        self._checkpoint: int | None = None

    @property
    def descriptors(self) -> tuple[int, int]:
        """File descriptors for the sampler: state and socket."""
        return self.file.fileno(), self.socket.fileno()

    def publish(self) -> None:
        """Publish the record's state; called at each step and phase. A failure does not end the trial."""
        record, now = self._record, _now()
        position = (record.steps_done, record.phase)
        if position != self._last_position:
            self._progress_at = now
        checkpoint = record.extra_progress.get("checkpoint_step")
        if checkpoint != self._checkpoint and self._last_position[0] >= 0:
            self._checkpoint_at = now
        self._checkpoint = checkpoint
        self._last_position = position
        self._write(self._state())

    def publish_labels(self) -> None:
        """Publish only the labels of the training that uses these GPUs."""
        self._write({"labels": self._labels()})

    def _write(self, state: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self.file.fileno(), json.dumps(state).encode().ljust(_STATE_BYTES), 0)

    def _labels(self) -> dict[str, str]:
        request = self._record.request
        return {
            "run": request.run_id or "",
            "trial": request.trial_id or self._record.trial.trial_id,
            "worker": request.worker or "",
        }

    def _state(self) -> dict[str, Any]:
        record = self._record
        done = record.steps if record.steps.step_time_sec else record.warmup
        tokens = done.useful_tokens[-1] / done.step_time_sec[-1] if done.step_time_sec else None
        chip = gpu_specs.lookup(record.fingerprint.get("gpu_name"))
        rate = None if chip is None else chip.matmul_tflops("bf16")
        known = tokens is not None and rate is not None and record.flop_per_token is not None
        return {
            "labels": self._labels(),
            "step": record.steps_done,
            "steps": record.steps_planned,
            "started": record.clock.started,
            "step_time_sec": done.step_time_sec[-1] if done.step_time_sec else None,
            "loss": done.loss[-1] if done.loss else None,
            "mfu": record.flop_per_token * tokens / (rate * 1e12) if known else None,  # type: ignore[operator]
            "usd_per_sec": (self._endpoint.usd_per_gpu_hour or 0.0) * record.trial.world_size / 3600.0,
            "progress_at": self._progress_at,
            "checkpoint_at": self._checkpoint_at or None,
            "useful_tokens_per_sec": tokens,
            **record.extra_progress,
        }

    def close(self) -> None:
        self.socket.close()
        self.file.close()


def _now() -> float:
    """Return the Unix time for Prometheus; never used for durations."""
    return datetime.now(timezone.utc).timestamp()


def serve(descriptors: Sequence[int], rows: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """Serve GET /metrics in threads of this process until it ends. `descriptors`: state and socket."""
    state_descriptor, listener = descriptors

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            metrics = (
                render(read_state(state_descriptor), rows()) if self.path.partition("?")[0] == "/metrics" else None
            )
            content = b"not found; use /metrics\n" if metrics is None else metrics.encode()
            self.send_response(200 if metrics is not None else 404)
            self.send_header("Content-Type", CONTENT_TYPE if metrics is not None else "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            return

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_arguments: object) -> None:  # the client disconnected
            return

    server = Server(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def read_state(descriptor: int) -> dict[str, Any]:
    """Read the trial's state; empty before the first write and during a partial one."""
    try:
        state = json.loads(os.pread(descriptor, _STATE_BYTES, 0))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def render(state: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> str:
    """Render the trial's state and the newest reading of each GPU as OpenMetrics text, without unknown values."""
    labels = {key: str(value) for key, value in state.get("labels", {}).items()}
    values = dict(state)
    if "started" in values:
        values["elapsed_sec"] = time.monotonic() - values["started"]
        values["cost_usd"] = values["elapsed_sec"] * values["usd_per_sec"] or None
    lines: list[str] = []
    for name, unit, description, key in _TRIAL_METRICS:
        lines += _family(name, unit, description, [(labels, values.get(key))])
    gpus = [({**labels, "gpu": str(row["gpu"])}, row) for row in rows if "gpu" in row]
    for name, unit, description, key, factor in _GPU_METRICS:
        lines += _family(name, unit, description, [(gpu_labels, row.get(key)) for gpu_labels, row in gpus], factor)
    limits = [
        ({**gpu_labels, "reason": reason}, float(reason in str(row["gpu_clock_limits"]).split()))
        for gpu_labels, row in gpus
        if row.get("gpu_clock_limits")
        for reason in nvml.SLOWDOWNS.values()
    ]
    lines += _family("gpu_throttled", "", "1 while the clocks are limited for this reason.", limits)
    return "\n".join([*lines, "# EOF"]) + "\n"


def _family(
    name: str, unit: str, description: str, samples: Sequence[tuple[Mapping[str, str], Any]], factor: float = 1.0
) -> Iterator[str]:
    known = [(labels, value) for labels, value in samples if isinstance(value, (int, float))]
    if not known:
        return
    full = f"qlora_fleet_{name}"
    yield f"# TYPE {full} gauge"
    if unit:
        yield f"# UNIT {full} {unit}"
    yield f"# HELP {full} {description}"
    for labels, value in known:
        label_text = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{full}{{{label_text}}} {value * factor:.10g}"


def _escaped(text: str) -> str:
    return escape_controls(text).replace("\\", "\\\\").replace('"', '\\"')


def main() -> int:
    """Run the sampler and serve its rows: `python -m bench.machine.prometheus STATE SOCKET ...`, two descriptors."""
    descriptors = [int(sys.argv.pop(1)) for _ in range(2)]
    return sampler.main(lambda active_sampler: serve(descriptors, lambda: active_sampler.newest))


if __name__ == "__main__":
    sys.exit(main())
