"""TensorBoard's event files, written without its packages: records of length, masked CRC-32C and a protobuf `Event`.

Each trial has a folder with one file. The same measurements give the same bytes and a further step more of them, so a
file that is there is added to: TensorBoard, which reads on where it was, shows a run while it goes on. A file that was
cut is completed. Where an earlier value became another one (a training that was started again repeats steps), a new
file takes its place.
"""

import fcntl
import functools
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.records.atomic_files import write_atomic
from reports import formatting
from reports.exports.log_model import Logged

FOLDER = "tensorboard"
_LARGEST = 3.4e38  # of a 32-bit float
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # protobuf's kinds of field
_DT_STRING, _START = 7, 1


def write(report: Path, runs: Sequence[Logged]) -> Path:
    """Bring the event files below a report's folder up to date. Raises OSError."""
    for run in runs:
        _bring_up(report / FOLDER / run.name, int(run.began), b"".join(map(_record, _events(run))))
    return report / FOLDER


def _bring_up(folder: Path, began: int, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    there = sorted(folder.glob("events.out.tfevents.*"))
    if there:
        with there[-1].open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # `inv report` and `inv tensorboard` may meet here
            held = file.read()
            if content.startswith(held):
                file.write(content[len(held) :])
                return
    number = int(there[-1].suffix[1:]) + 1 if there else 1
    write_atomic(folder / f"events.out.tfevents.{began:010d}.{number:06d}", content)
    for path in there:
        path.unlink()


def _events(run: Logged) -> Iterator[bytes]:
    """The run as `Event` messages."""
    yield _event(run.began) + _bytes(3, b"brain.Event:2")
    yield _event(run.began) + _bytes(7, _varint(1, _START))  # what an earlier file said of these steps is void
    yield _event(run.began) + _bytes(5, _bytes(1, _settings(run)))
    for point in run.points:
        fits = {name: value for name, value in point.values.items() if abs(value) <= _LARGEST}
        values = [_bytes(1, _bytes(1, f"{point.phase}/{name}".encode()) + _float(2, fits[name])) for name in fits]
        if values:
            yield _event(point.at, point.step) + _bytes(5, b"".join(values))


def _settings(run: Logged) -> bytes:
    """A `Summary.Value` for the text tab: the settings as a table."""
    rows = [("run", run.run_id), ("configuration", run.configuration), ("worker", run.worker or "-")]
    rows += [(name, str(value)) for name, value in run.settings.items()]
    table = "\n".join(
        ["| setting | value |", "|---|---|", *(f"| {name} | {formatting.markdown(to)} |" for name, to in rows)]
    )
    tensor = _varint(1, _DT_STRING) + _bytes(2, b"") + _bytes(8, table.encode())
    return _bytes(1, b"settings") + _bytes(8, tensor) + _bytes(9, _bytes(1, _bytes(1, b"text")))


def _event(at: float, step: int = 0) -> bytes:
    return _key(1, _DOUBLE) + struct.pack("<d", at) + _varint(2, step)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked(length) + event + _masked(event)


def _masked(content: bytes) -> bytes:
    sum_ = crc32c(content)
    return struct.pack("<I", (((sum_ >> 15) | (sum_ << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(content: bytes) -> int:
    """The CRC-32C (Castagnoli) of `content`."""
    table, found = _table(), 0xFFFFFFFF
    for byte in content:
        found = table[(found ^ byte) & 0xFF] ^ (found >> 8)
    return found ^ 0xFFFFFFFF


@functools.cache
def _table() -> tuple[int, ...]:
    def of(byte: int) -> int:
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        return byte

    return tuple(map(of, range(256)))


def _key(field: int, kind: int) -> bytes:
    return bytes([field << 3 | kind])


def _number(value: int) -> bytes:
    """A whole number as protobuf writes one: seven bits a byte, the lowest first."""
    pieces = []
    while value > 0x7F:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*pieces, value])


def _varint(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _number(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _number(len(content)) + content


def _float(field: int, value: float) -> bytes:
    return _key(field, _FLOAT) + struct.pack("<f", value)
