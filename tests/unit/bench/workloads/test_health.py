"""The burn-in's checks on the CPU: a changed bit in memory and a wrong product are found, sound ones are not."""

import pytest

from bench.workloads import health

torch = pytest.importorskip("torch", reason="torch is not installed")
CPU = torch.device("cpu")


@pytest.mark.parametrize("key", health.KEYS)
def test_each_changed_bit_of_the_memory_is_counted(monkeypatch: pytest.MonkeyPatch, key: int) -> None:
    monkeypatch.setattr(health, "CHUNK_WORDS", 1 << 10)
    chunks = health.allocate(torch, CPU, 3 << 12)
    assert [chunk.numel() for chunk in chunks] == [1 << 10] * 3
    health.fill(torch, chunks, key)
    assert len(set(torch.cat(chunks).tolist())) == 3 << 10, "each word differs from all others"
    assert health.count_differences(torch, chunks, key) == 0
    health.fill(torch, chunks, key)
    chunks[1][5] ^= 1 << 30
    chunks[2][0] ^= 1
    assert health.count_differences(torch, chunks, key) == 2


def test_words_at_one_place_of_two_chunks_differ() -> None:
    chunk = torch.empty(1, dtype=torch.int32)
    values = set()
    for number in range(600):  # 150 GiB
        health._write_numbers(torch, chunk, number)
        values.add(int(chunk))
    assert len(values) == 600


def test_the_keys_set_every_bit_to_both_values() -> None:
    assert all({key >> bit & 1 for key in health.KEYS} == {0, 1} for bit in range(32))


def test_exact_products_are_equal_and_a_wrong_operand_is_found() -> None:
    check = health.ProductCheck(torch, CPU, 64)
    check.multiply()
    assert check.wrong_results() == 0
    check._left[3, 4] += 1
    check.multiply()
    assert 0 < check.wrong_results() <= 64
