"""What a running trial shows at /metrics, in OpenMetrics text, for Prometheus. Off unless METRICS_VARIABLE asks for it.

The trial's process puts its state into one small block of an unlinked file at each step; the sampler's process serves
it, beside its own readings of the GPUs. So a scrape costs the training nothing. There is one series for
each quantity and GPU, never one for each step. When the trial ends, nothing answers any more, and Prometheus marks its
series as stale.

Of a training over several pods the first one's process has the numbers of all; the others show their own GPUs.
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
from bench.records.validation import printable

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_BLOCK = 4096
# name, unit, help, where from; of a GPU also a factor
_OF_TRIAL = (
    ("steps_done", "", "Steps that are done, warm-up included.", "step"),
    ("steps_planned", "", "Steps that are planned.", "steps"),
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
    ("restarts", "", "How often the training was started again.", "restarts"),
    ("cost_dollars", "dollars", "GPU hours of this attempt times the price that was given.", "cost_usd"),
)
_OF_GPU = (
    ("gpu_power_watts", "watts", "Power.", "gpu_power_watts", 1.0),
    ("gpu_sm_clock_hertz", "hertz", "Clock of the processors.", "gpu_sm_clock_mhz", 1e6),
    ("gpu_temperature_celsius", "celsius", "Temperature.", "gpu_temperature_celsius", 1.0),
    ("gpu_memory_used_bytes", "bytes", "Memory in use.", "gpu_memory_used_bytes", 1.0),
    ("gpu_utilization_ratio", "ratio", "Share of time in which a kernel ran.", "gpu_utilization_percent", 0.01),
)


@dataclass(frozen=True, kw_only=True)
class MetricsEndpoint:
    """Where to listen, and the price of a GPU hour where that is known."""

    host: str
    port: int
    usd_per_gpu_hour: float | None = None

    @classmethod
    def from_environment(cls) -> "MetricsEndpoint | None":
        """What METRICS_VARIABLE asks for; None where it asks for nothing. Raises ValueError."""
        text = os.environ.get(METRICS_VARIABLE, "")
        if not text:
            return None
        try:
            given = json.loads(text)
            price = given.get("usd_per_gpu_hour")
            port = int(given["port"])
            if not 0 <= port < 65536:
                raise ValueError
            return cls(host=str(given["host"]), port=port, usd_per_gpu_hour=None if price is None else float(price))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{METRICS_VARIABLE}: expected host and port as JSON, found {text[:60]!r}") from None


class MetricsBoard:
    """The trial's side: its state, where the sampler finds it, and the socket on which that will answer."""

    def __init__(self, record: Record, asked: MetricsEndpoint) -> None:
        """Raises OSError: a port that is taken."""
        self._record, self._asked = record, asked
        self.socket = socket.create_server((asked.host, asked.port))
        self.port = self.socket.getsockname()[1]
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._last = (-1, "")
        self._progress_at = self._checkpoint_at = 0.0
        self._checkpoint: int | None = None

    @property
    def handles(self) -> tuple[int, int]:
        """File descriptors for the sampler: state and socket."""
        return self.file.fileno(), self.socket.fileno()

    def tell(self) -> None:
        """Put the record's state up; called at each step and phase. A failure ends no trial."""
        record, now = self._record, _now()
        place = (record.steps_done, record.phase)
        if place != self._last:
            self._progress_at = now
        checkpoint = record.shown.get("checkpoint_step")
        if checkpoint != self._checkpoint and self._last[0] >= 0:
            self._checkpoint_at = now
        self._checkpoint = checkpoint
        self._last = place
        self._put(self._state())

    def tell_place(self) -> None:
        """Put up which training's GPUs these are, and nothing of the training itself."""
        self._put({"labels": self._labels()})

    def _put(self, state: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self.file.fileno(), json.dumps(state).encode().ljust(_BLOCK), 0)

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
            "usd_per_sec": (self._asked.usd_per_gpu_hour or 0.0) * record.trial.world_size / 3600.0,
            "progress_at": self._progress_at,
            "checkpoint_at": self._checkpoint_at or None,
            "useful_tokens_per_sec": tokens,
            **record.shown,
        }

    def close(self) -> None:
        self.socket.close()
        self.file.close()


def _now() -> float:
    """A moment for Prometheus, in seconds since 1970; no duration is taken from it here."""
    return datetime.now(timezone.utc).timestamp()


def serve(handles: Sequence[int], rows: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """The sampler's side: answer GET /metrics in threads of this process, for as long as it lives."""
    board, listener = handles

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            found = render(read(board), rows()) if self.path.partition("?")[0] == "/metrics" else None
            content = b"only /metrics is here\n" if found is None else found.encode()
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Type", CONTENT_TYPE if found is not None else "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_words: object) -> None:
            return

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_given: object) -> None:  # a client that went away
            return

    server = Server(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def read(board: int) -> dict[str, Any]:
    """The trial's state; empty before there is one, and while it is half written."""
    try:
        found = json.loads(os.pread(board, _BLOCK, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def render(state: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> str:
    """OpenMetrics text: of the trial's state and the newest reading of each GPU. What is unknown is left out."""
    labels = {key: str(value) for key, value in state.get("labels", {}).items()}
    values = dict(state)
    if "started" in values:
        values["elapsed_sec"] = time.monotonic() - values["started"]
        values["cost_usd"] = values["elapsed_sec"] * values["usd_per_sec"] or None
    lines: list[str] = []
    for name, unit, words, key in _OF_TRIAL:
        lines += _family(name, unit, words, [(labels, values.get(key))])
    gpus = [({**labels, "gpu": str(row["gpu"])}, row) for row in rows if "gpu" in row]
    for name, unit, words, key, factor in _OF_GPU:
        lines += _family(name, unit, words, [(own, row.get(key)) for own, row in gpus], factor)
    limits = [
        ({**own, "reason": reason}, float(reason in str(row["gpu_clock_limits"]).split()))
        for own, row in gpus
        if row.get("gpu_clock_limits")
        for reason in nvml.SLOWDOWNS.values()
    ]
    lines += _family("gpu_throttled", "", "1 while the clocks are slowed down for this reason.", limits)
    return "\n".join([*lines, "# EOF"]) + "\n"


def _family(
    name: str, unit: str, words: str, samples: Sequence[tuple[Mapping[str, str], Any]], factor: float = 1.0
) -> Iterator[str]:
    known = [(labels, value) for labels, value in samples if isinstance(value, (int, float))]
    if not known:
        return
    full = f"qlora_fleet_{name}"
    yield f"# TYPE {full} gauge"
    if unit:
        yield f"# UNIT {full} {unit}"
    yield f"# HELP {full} {words}"
    for labels, value in known:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{full}{{{inside}}} {value * factor:.10g}"


def _escaped(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def main() -> int:
    """`python -m bench.machine.prometheus STATE SOCKET ...`: the sampler, which also answers. Both are descriptors."""
    handles = [int(sys.argv.pop(1)) for _ in range(2)]
    return sampler.main(lambda sampling: serve(handles, lambda: sampling.newest))


if __name__ == "__main__":
    sys.exit(main())
