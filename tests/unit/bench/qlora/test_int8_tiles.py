"""Choice of the INT8 products' tiles: from fake times, from a file that may be hostile, and by several ranks."""

import json
from types import SimpleNamespace

import pytest

from bench.data.inputs import InputError
from bench.kernels.int8 import matmul
from bench.qlora.recipes import int8
from bench.qlora.recipes.int8 import choose, read_choice, use_best_tiles, write_choice

WIDE, TALL = (6144, 4096), (4096, 14336)
NAMES = tuple(matmul.AMPERE_CANDIDATES)
DEFAULT, OTHER, THIRD = NAMES


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({DEFAULT: 1.0, OTHER: 0.9, THIRD: 0.95}, OTHER),
        ({DEFAULT: 1.0, OTHER: 0.995, THIRD: 0.999}, DEFAULT),  # less than the noise
        ({DEFAULT: 0.8, OTHER: 0.9, THIRD: 0.95}, DEFAULT),
    ],
)
def test_the_fastest_candidate_is_chosen_if_it_gains_something(times, expected):
    assert choose([WIDE, WIDE], NAMES, lambda _, name: times[name]) == {WIDE: expected}


def test_one_slow_call_decides_nothing_and_shapes_choose_for_themselves():
    calls = []

    def seconds(shape, name):
        calls.append((shape, name))
        return 9.0 if len(calls) == 2 else {DEFAULT: 1.0, OTHER: 0.5, THIRD: 0.4 if shape == TALL else 2.0}[name]

    assert choose([WIDE, TALL], NAMES, seconds) == {WIDE: OTHER, TALL: THIRD}
    assert calls[:3] == [(WIDE, name) for name in NAMES]


def test_a_choice_is_read_back_and_only_for_all_shapes(tmp_path):
    path = tmp_path / "new" / "tiles.json"
    assert write_choice(path, {WIDE: OTHER, TALL: DEFAULT}) == ""
    assert read_choice(path, [TALL, WIDE], matmul.AMPERE_CANDIDATES) == {WIDE: OTHER, TALL: DEFAULT}
    assert read_choice(path, [WIDE, (1, 2)], matmul.AMPERE_CANDIDATES) is None
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{", b"\xff", b'{"tiles": []}', b'{"tiles": {"6144x4096": "w99"}}',
        b'{"tiles": {"6144x4096": []}}',
        b'{"tiles": {"6144x4096": {"tokens": 4}}}', b"[" * 60_000, b" " * ((1 << 16) + 1),
    ],
)  # fmt: skip
def test_a_damaged_file_selects_nothing(tmp_path, content):
    path = tmp_path / "tiles.json"
    path.write_bytes(content)
    assert read_choice(path, [WIDE], matmul.AMPERE_CANDIDATES) is None


def test_a_file_that_another_user_can_write_or_a_link_selects_nothing(tmp_path, monkeypatch):
    path, link = tmp_path / "tiles.json", tmp_path / "link.json"
    assert write_choice(path, {WIDE: OTHER}) == ""
    link.symlink_to(path)
    assert read_choice(link, [WIDE], matmul.AMPERE_CANDIDATES) is None
    path.chmod(0o666)
    assert read_choice(path, [WIDE], matmul.AMPERE_CANDIDATES) is None
    path.chmod(0o644)
    monkeypatch.setattr(int8.os, "geteuid", lambda: 4242)
    assert read_choice(path, [WIDE], matmul.AMPERE_CANDIDATES) is None


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A GPU of compute capability 8.6 with a fake timer; `gpu.calls` are its measurements, `gpu.ranks` a group."""
    state = SimpleNamespace(calls=[], ranks=1, capability=(8, 6))

    def timer(*_):
        def seconds(shape, name):
            state.calls.append((shape, name))
            return 0.5 if name == OTHER else 1.0

        return seconds

    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: state.ranks)
    state.torch = SimpleNamespace(distributed=group)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(int8.VARIABLE, raising=False)
    monkeypatch.setattr(int8, "gpu_properties", lambda _: (state.capability, 72))
    monkeypatch.setattr(int8, "_fingerprint", lambda *_: {"gpu": "NVIDIA A10"})
    monkeypatch.setattr(int8, "_timer", timer)
    yield state
    matmul.select_tiles({})


def test_the_first_process_measures_and_the_next_reads_the_file(gpu, tmp_path):
    first = use_best_tiles(gpu.torch, None, [WIDE, TALL], 4096)
    assert len(gpu.calls) == 2 * len(NAMES) * int8.ROUNDS
    assert matmul._selected == dict.fromkeys((WIDE, TALL), matmul.AMPERE_CANDIDATES[OTHER])
    assert f"6144x4096:{OTHER}" in first
    assert "measured" in first
    (path,) = (tmp_path / "cache" / "qlora-fleet" / "int8-tiles").iterdir()
    assert json.loads(path.read_text())["tiles"]["6144x4096"] == OTHER
    gpu.ranks = 4
    assert "file" in use_best_tiles(gpu.torch, None, [WIDE, TALL], 4096)
    assert len(gpu.calls) == 2 * len(NAMES) * int8.ROUNDS
    assert set(matmul._selected) == {WIDE, TALL}


@pytest.mark.parametrize("case", ["default", "several ranks", "untested GPU"])
def test_the_defaults_are_used_on_request_and_where_nothing_may_be_measured(gpu, monkeypatch, case):
    matmul.select_tiles({WIDE: matmul.AMPERE_CANDIDATES[THIRD]})
    monkeypatch.setenv(int8.VARIABLE, "default" if case == "default" else "auto")
    gpu.ranks, gpu.capability = 4 if case == "several ranks" else 1, (12, 0) if case == "untested GPU" else (8, 6)
    assert use_best_tiles(gpu.torch, None, [WIDE], 4096).startswith("INT8 tiles default")
    assert (gpu.calls, matmul._selected) == ([], {})


def test_another_value_is_refused(gpu, monkeypatch):
    monkeypatch.setenv(int8.VARIABLE, "fastest")
    with pytest.raises(InputError):
        use_best_tiles(gpu.torch, None, [WIDE], 4096)


def test_a_cache_that_cannot_be_written_is_named(gpu, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert "not kept" in use_best_tiles(gpu.torch, None, [WIDE], 4096)
    assert matmul._selected[WIDE] is matmul.AMPERE_CANDIDATES[OTHER]


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)])
def test_the_first_candidate_is_the_default(capability):
    assert next(iter(matmul.candidates(capability).values())) is matmul.tiles_for(capability)
