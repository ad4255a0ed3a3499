"""The random number of a token depends on (seed, position) only, and on every bit of both."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from weir.engine.random_numbers import choice_seed, mix64, stream_key, uniform

from tests.unit.sampling.rows import state


def test_a_stream_is_splitmix64_seeded_with_its_key() -> None:
    """The published first outputs of SplitMix64 for seed 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [uniform(1234567, position) for position in range(5)] == [(z >> 11) / 2**53 for z in published]


def test_the_vectors_of_the_documentation() -> None:
    vectors = {
        (0, 0): 0.6524484863740322,
        (0, 1): 0.7012121095215252,
        (1, 0): 0.36818951565166946,
        (42, 1000): 0.6952598398323256,
        (2**64 - 1, 2**20): 0.6439801416380194,
    }
    assert {(seed, position): uniform(stream_key(seed), position) for seed, position in vectors} == vectors
    assert [choice_seed(42, choice) for choice in range(3)] == [42, 814261035509592648, 11333517100451040940]


def test_numbers_equal_a_numpy_uint64_computation() -> None:
    def mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
        return mixed

    golden = np.uint64(0x9E3779B97F4A7C15)
    positions = np.arange(1000, dtype=np.uint64)
    for seed in (0, 7, 2**63 + 5):
        key = mix(np.array([seed], dtype=np.uint64) + golden)
        expected = (mix(key + (positions + np.uint64(1)) * golden) >> np.uint64(11)) * 2.0**-53
        assert [uniform(stream_key(seed), p) for p in range(1000)] == expected.tolist()


def test_numbers_are_uniform_over_positions_and_over_adjacent_seeds() -> None:
    """Chi-square over 64 equal bins; 103.4 is the 99.9 % quantile of 63 degrees of freedom."""
    key = stream_key(3)
    for drawn in ([uniform(key, p) for p in range(64_000)], [uniform(stream_key(seed), 17) for seed in range(64_000)]):
        counts = np.histogram(drawn, bins=64, range=(0.0, 1.0))[0]
        assert float(((counts - 1000.0) ** 2 / 1000.0).sum()) < 103.4


def test_successive_positions_are_uncorrelated() -> None:
    drawn = np.array([uniform(stream_key(5), p) for p in range(50_000)])
    for lag in (1, 2, 64):
        assert abs(float(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1])) < 4 / 50_000**0.5


def test_the_finaliser_is_a_bijection_on_a_sample() -> None:
    assert len({mix64(z) for z in range(50_000)}) == 50_000


def test_choice_zero_has_the_requests_own_seed() -> None:
    assert choice_seed(123, 0) == 123
    assert state(8, seed=123, choice=0).random(4) == state(8, seed=123).random(4)


def test_choices_and_near_seeds_share_no_stream() -> None:
    streams = {stream_key(choice_seed(seed, choice)) for seed in range(500) for choice in range(16)}
    assert len(streams) == 500 * 16


def test_without_a_seed_every_state_draws_its_own() -> None:
    assert len({state(8, seed=None).random(0) for _ in range(50)}) == 50


def test_without_a_seed_a_state_keeps_its_stream() -> None:
    unseeded = state(8, seed=None)
    before = [unseeded.random(position) for position in range(5)]
    for token_id in (1, 2, 3):
        unseeded.append(token_id)
    assert [unseeded.random(position) for position in range(5)] == before
