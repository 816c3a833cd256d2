"""TensorBoard event files, written without its packages: records of length, masked CRC-32C and a protobuf `Event`.

Each trial has a folder with one file. The same measurements always give the same bytes, and new steps only append, so
an existing file is extended and TensorBoard can follow a run in progress. A truncated file is completed. If an earlier
value changed (a restarted training repeats steps), a new file replaces the old one.
"""

import fcntl
import functools
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.records.atomic_files import write_atomic
from reports import formatting
from reports.exports.log_model import LoggedRun

FOLDER = "tensorboard"
_MAX_FLOAT32 = 3.4e38
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # protobuf's wire types
_DT_STRING, _START = 7, 1


def write(report_folder: Path, runs: Sequence[LoggedRun]) -> Path:
    """Update the event files below a report's folder. Raises OSError."""
    for run in runs:
        _update_file(
            report_folder / FOLDER / run.name, int(run.start_time), b"".join(map(_encode_record, _encode_events(run)))
        )
    return report_folder / FOLDER


def _update_file(folder: Path, start_time: int, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    existing = sorted(folder.glob("events.out.tfevents.*"))
    if existing:
        with existing[-1].open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # `inv report` and `inv tensorboard` may run at once
            current = file.read()
            if content.startswith(current):
                file.write(content[len(current) :])
                return
    file_number = int(existing[-1].suffix[1:]) + 1 if existing else 1
    write_atomic(folder / f"events.out.tfevents.{start_time:010d}.{file_number:06d}", content)
    for path in existing:
        path.unlink()


def _encode_events(run: LoggedRun) -> Iterator[bytes]:
    """Yield the run as `Event` messages."""
    yield _encode_event(run.start_time) + _bytes_field(3, b"brain.Event:2")
    yield _encode_event(run.start_time) + _bytes_field(
        7, _varint_field(1, _START)
    )  # discards an earlier file's values for these steps
    yield _encode_event(run.start_time) + _bytes_field(5, _bytes_field(1, _encode_settings(run)))
    for point in run.points:
        fits = {name: value for name, value in point.values.items() if abs(value) <= _MAX_FLOAT32}
        values = [
            _bytes_field(1, _bytes_field(1, f"{point.phase}/{name}".encode()) + _float_field(2, fits[name]))
            for name in fits
        ]
        if values:
            yield _encode_event(point.time, point.step) + _bytes_field(5, b"".join(values))


def _encode_settings(run: LoggedRun) -> bytes:
    """Encode the settings as a `Summary.Value`: a table for the text tab."""
    rows = [("run", run.run_id), ("configuration", run.configuration), ("worker", run.worker or "-")]
    rows += [(name, str(value)) for name, value in run.settings.items()]
    table = "\n".join(
        ["| setting | value |", "|---|---|", *(f"| {name} | {formatting.markdown(to)} |" for name, to in rows)]
    )
    tensor = _varint_field(1, _DT_STRING) + _bytes_field(2, b"") + _bytes_field(8, table.encode())
    return (
        _bytes_field(1, b"settings")
        + _bytes_field(8, tensor)
        + _bytes_field(9, _bytes_field(1, _bytes_field(1, b"text")))
    )


def _encode_event(seconds: float, step: int = 0) -> bytes:
    return _field_key(1, _DOUBLE) + struct.pack("<d", seconds) + _varint_field(2, step)


def _encode_record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked_crc(length) + event + _masked_crc(event)


def _masked_crc(content: bytes) -> bytes:
    sum_ = crc32c(content)
    return struct.pack("<I", (((sum_ >> 15) | (sum_ << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(content: bytes) -> int:
    """Compute the CRC-32C (Castagnoli) of `content`."""
    table, checksum = _crc_table(), 0xFFFFFFFF
    for byte in content:
        checksum = table[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    return checksum ^ 0xFFFFFFFF


@functools.cache
def _crc_table() -> tuple[int, ...]:
    def entry(byte: int) -> int:
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        return byte

    return tuple(map(entry, range(256)))


def _field_key(field: int, kind: int) -> bytes:
    return bytes([field << 3 | kind])


def _varint(value: int) -> bytes:
    """Encode an integer as a protobuf varint: seven bits per byte, the lowest first."""
    pieces = []
    while value > 0x7F:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*pieces, value])


def _varint_field(field: int, value: int) -> bytes:
    return _field_key(field, _VARINT) + _varint(value)


def _bytes_field(field: int, content: bytes) -> bytes:
    return _field_key(field, _BYTES) + _varint(len(content)) + content


def _float_field(field: int, value: float) -> bytes:
    return _field_key(field, _FLOAT) + struct.pack("<f", value)
