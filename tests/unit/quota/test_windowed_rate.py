"""Rates over windows and token buckets. The expected numbers follow from Kafka's formulas, worked out by hand."""

from __future__ import annotations

import random

import pytest

from klamm.quota.windowed_rate import LONGEST_THROTTLE_MS, TokenBucket, WindowedRate, Windows

ELEVEN = Windows(11, 1000)


def test_a_client_that_has_just_begun_is_measured_over_ten_whole_windows() -> None:
    rate = WindowedRate(ELEVEN)
    rate.record(5_000, 0)
    assert rate.elapsed_ms(0) == 10_000
    assert rate.per_second(0) == 500
    assert rate.elapsed_ms(400) == 10_400


def test_the_throttle_time_stretches_the_windows_until_the_rate_is_the_limit() -> None:
    rate = WindowedRate(ELEVEN)
    rate.record(20_000, 0)
    assert rate.throttle_time_ms(2_000, 0) == 0, "the limit itself is allowed"
    assert rate.throttle_time_ms(1_000, 0) == 10_000  # (2000 - 1000) / 1000 * 10 s
    rate.record(5_000, 500)
    assert rate.throttle_time_ms(1_000, 500) == 25_000 - 10_500


def test_a_window_counts_until_its_last_value_is_older_than_all_windows() -> None:
    rate = WindowedRate(ELEVEN)
    rate.record(100, 0)
    rate.record(100, 900)
    rate.record(7, 1_000)
    assert rate.total(11_899) == 207
    assert rate.elapsed_ms(11_899) == 11_899, "the oldest window overlaps the span"
    assert rate.total(11_900) == 7
    assert rate.total(12_000) == 0
    assert rate.elapsed_ms(12_000) == 10_000


def test_an_idle_time_does_not_make_a_burst_look_small() -> None:
    rate = WindowedRate(ELEVEN)
    rate.record(1, 0)
    rate.record(10_000, 60_000)
    assert rate.per_second(60_000) == 1_000


def test_a_value_can_be_removed_again() -> None:
    rate = WindowedRate(ELEVEN)
    rate.record(10, 0)
    rate.record(500, 100)
    rate.record(-500, 100)
    assert rate.total(100) == 10


def test_a_rate_that_is_never_read_stays_small() -> None:
    rate = WindowedRate(ELEVEN)
    for second in range(100):
        rate.record(1, second * 1_000)
    assert len(rate._samples) <= ELEVEN.num + 1
    assert rate.total(99_000) == 11


def test_one_window_and_no_time_is_measured_over_a_millisecond() -> None:
    rate = WindowedRate(Windows(1, 1000))
    rate.record(3, 0)
    assert rate.elapsed_ms(0) == 1
    assert rate.per_second(0) == 3_000


@pytest.mark.parametrize("limit", [0, -1])
def test_without_a_limit_above_zero_a_client_waits_for_all_windows(limit: float) -> None:
    rate = WindowedRate(ELEVEN)
    rate.record(1, 0)
    assert rate.throttle_time_ms(limit, 0) == 11_000


def test_a_throttle_time_fits_into_a_response() -> None:
    rate = WindowedRate(ELEVEN)
    rate.record(1e15, 0)
    assert rate.throttle_time_ms(1, 0) == LONGEST_THROTTLE_MS


@pytest.mark.parametrize("limit", [5e-324, 1e-300])
def test_a_limit_next_to_zero_throttles_and_raises_nothing(limit: float) -> None:
    rate = WindowedRate(ELEVEN)
    rate.record(100, 0)
    assert rate.throttle_time_ms(limit, 0) == LONGEST_THROTTLE_MS
    bucket = TokenBucket(ELEVEN, limit, 0)
    bucket.take(100, limit, 0)
    assert bucket.throttle_time_ms(limit, 0) == LONGEST_THROTTLE_MS


@pytest.mark.parametrize("seed", range(20))
def test_the_running_total_equals_the_sum_over_all_values(seed: int) -> None:
    """Against Kafka's rules written down plainly: a list of samples, purged and added up at every look."""
    rng = random.Random(seed)
    windows = Windows(rng.randint(1, 5), rng.choice([100, 1000]))
    rate = WindowedRate(windows)
    samples: list[list[float]] = []
    now = 0.0
    for _ in range(300):
        now += rng.choice([0, 1, 50, windows.size_ms, windows.span_ms])
        value = rng.randint(0, 100)
        rate.record(value, now)
        if not samples or now - samples[-1][0] >= windows.size_ms:
            samples.append([now, now, 0])
        samples[-1][1] = now
        samples[-1][2] += value
        samples = [sample for sample in samples if now - sample[1] < windows.span_ms]
        assert rate.total(now) == sum(sample[2] for sample in samples)
        assert len(samples) <= windows.num + 1
        elapsed = now - samples[0][0]
        whole = elapsed // windows.size_ms
        expected = max(elapsed + max(windows.num - 1 - whole, 0) * windows.size_ms, 1)
        assert rate.elapsed_ms(now) == expected


def test_a_full_bucket_holds_the_limit_of_all_windows() -> None:
    bucket = TokenBucket(Windows(100, 1000), 5, 0)
    assert bucket.tokens(5, 0) == 500
    assert bucket.take(560, 5, 0) == -60
    assert bucket.throttle_time_ms(5, 0) == 12_000  # the example of KIP-599
    assert bucket.throttle_time_ms(5, 11_999) == 1
    assert bucket.throttle_time_ms(5, 12_000) == 0
    assert bucket.tokens(5, 10_000_000) == 500, "it never holds more"


def test_tokens_can_be_given_back_up_to_the_brim() -> None:
    bucket = TokenBucket(Windows(10, 1000), 1, 0)
    bucket.take(4, 1, 0)
    assert bucket.take(-100, 1, 0) == 10


def test_a_new_limit_bounds_the_tokens_that_are_left() -> None:
    bucket = TokenBucket(Windows(10, 1000), 10, 0)
    assert bucket.tokens(2, 0) == 20
