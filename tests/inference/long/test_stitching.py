import numpy as np
import pytest

from sepkit.inference.diarization.profiles import Profiles, TraitStatistics, measure_voices
from sepkit.inference.long import stitching
from sepkit.inference.long.stitching import ChunkEvidence, Chunking, Stitcher, best_orders, compare_overlap

RATE = 8000


def voice(seconds, pitch_hz, formants_hz, seed, rate=RATE):
    """A voice: pulses at a pitch that wanders, through resonances that wander, in syllables with short pauses."""
    generator = np.random.default_rng(seed)
    length = round(seconds * rate)
    time = np.arange(length) / rate
    wander = np.interp(
        time, np.arange(0, seconds + 1, 0.25), generator.normal(0, 1, len(np.arange(0, seconds + 1, 0.25)))
    )
    phase = np.cumsum(pitch_hz * (1 + 0.06 * wander)) / rate
    spectrum = np.fft.rfft(np.diff(np.floor(phase), prepend=0) + 0.003 * generator.standard_normal(length))
    frequencies = np.fft.rfftfreq(length, 1 / rate)
    shape = sum(1 / (1 + ((frequencies - f) / 150) ** 2) / (1 + f / 500) for f in formants_hz)
    syllables = np.interp(
        time, np.arange(0, seconds + 1, 0.15), generator.uniform(0.05, 1, len(np.arange(0, seconds + 1, 0.15)))
    )
    sound = np.fft.irfft(spectrum * shape, length) * syllables
    return (0.05 * sound / np.sqrt(np.mean(sound**2))).astype(np.float32)


LOW = (110.0, (450.0, 1100.0, 2300.0))
HIGH = (210.0, (650.0, 1700.0, 2900.0))
MIDDLE = (150.0, (350.0, 2000.0, 2600.0))


def sources_with_silences(seconds, seed, silences=(), voices=(LOW, HIGH)):
    """(n, T) voices; of `silences`, (who, from, to) in seconds, nothing is heard."""
    signals = np.stack([voice(seconds, *parameters, seed + i) for i, parameters in enumerate(voices)])
    for who, start, stop in silences:
        signals[who, round(start * RATE) : round(stop * RATE)] = 0
    return signals


def count_of(chunking, num_samples):
    return 1 + max(0, -(-(num_samples - chunking.chunk) // chunking.hop))


def in_chunks(sources, chunking, seed, leak=0.05, noise=1e-4, lots=None):
    """Estimates of chunks in random orders, each with some of the other's and noise; and those orders."""
    generator = np.random.default_rng(seed)
    n, length = sources.shape
    mixture = sources.sum(0)
    for k in range(count_of(chunking, length)):
        part = slice(k * chunking.hop, min(length, k * chunking.hop + chunking.chunk))
        estimates = (1 - leak) * sources[:, part] + leak * mixture[part]
        estimates = estimates + noise * generator.standard_normal(estimates.shape)
        order = generator.permutation(n) if lots is None else lots[k]
        yield estimates[order].astype(np.float32), np.argsort(order)


def stitched_right(sources, chunking, by_voices, seed, **options):
    """(K,) whether each chunk's order is that of the first."""
    stitcher, truth = Stitcher(chunking, RATE, by_voices), []
    for estimates, order in in_chunks(sources, chunking, seed, **options):
        stitcher.add(estimates)
        truth.append(order)
    truth = np.stack(truth)
    return (stitcher.orders() == truth[:, np.argsort(truth[0])]).all(1)


# -------------------------------------------------------------------------------------------------------------- chunks


@pytest.mark.parametrize("num_samples", [1, 5, 10, 11, 14, 15, 16, 100, 101])
@pytest.mark.parametrize("chunking", [Chunking(10, 5), Chunking(10, 3), Chunking(10, 1), Chunking(7, 2)])
def test_weights_of_all_chunks_are_one_everywhere(num_samples, chunking):
    count, total, end = count_of(chunking, num_samples), np.zeros(num_samples), 0
    for k in range(count):
        start, end = k * chunking.hop, min(num_samples, k * chunking.hop + chunking.chunk)
        assert end - start > (chunking.overlap if k else 0)
        total[start:end] += chunking.weights(end - start, first=k == 0, last=k == count - 1)
    assert end == num_samples
    np.testing.assert_allclose(total, 1, atol=1e-6)


# -------------------------------------------------------------------------------------------------------------- orders


@pytest.mark.parametrize("n", [1, 2, 3])
def test_orders_are_tables_of_permutations(n):
    table, nats = stitching._Orders(n), np.random.default_rng(n).normal(size=(n, n))
    for s, before in enumerate(table.all):
        for t, after in enumerate(table.all):
            leads = table.all[table.between[s, t]]
            assert (leads[before] == after).all()
    # Brute force: from order s to order t, speaker j's estimates are before[j] and after[j].
    sums = np.array([[nats[before, after].sum() for after in table.all] for before in table.all])
    expected = np.log(0.9 * np.exp(sums) / np.exp(sums[0]).sum() + 0.1 / len(table.all))
    np.testing.assert_allclose(table.of_overlap(nats), expected, atol=1e-9)
    voices = np.array([sum(nats[order[j], j] for j in range(n)) for order in table.all])
    assert table.of_voices(nats).argmax() == voices.argmax()


def test_the_sequence_is_the_likeliest_of_all():
    """The order agrees with brute force over all sequences, where no voice is heard."""
    generator = np.random.default_rng(0)
    silence = measure_voices(np.zeros((2, 800), np.float32), RATE, 1.0)
    for _ in range(20):
        evidence = [ChunkEvidence(generator.normal(0, 0.1, (2, 2)), np.zeros((2, 2)), silence) for _ in range(6)]
        table = stitching._Orders(2)
        overlaps = [table.of_overlap(10 * chunk.agreement) for chunk in evidence]
        sequences = [(0, *rest) for rest in np.ndindex(*[2] * 5)]
        chances = [sum(overlaps[k][s[k - 1], s[k]] for k in range(1, 6)) for s in sequences]
        best = table.all[list(sequences[int(np.argmax(chances))])]
        np.testing.assert_array_equal(best_orders(evidence, 5.0), best)


@pytest.mark.parametrize("by_voices", [True, False])
@pytest.mark.parametrize("voices", [(LOW, HIGH), (LOW, HIGH, MIDDLE)])
def test_chunks_in_any_order_are_restored(by_voices, voices):
    sources = sources_with_silences(60, 10, voices=voices)
    assert stitched_right(sources, Chunking(10 * RATE, 5 * RATE), by_voices, seed=1).all()


def test_many_hypotheses_are_restored():
    """With six estimates, four of them nearly silent, there are too many orders to try all."""
    quiet = 1e-3 * np.random.default_rng(0).normal(size=(4, 20 * RATE))
    sources = np.concatenate([sources_with_silences(20, 3), quiet])
    assert stitched_right(sources.astype(np.float32), Chunking(5 * RATE, 2 * RATE), True, seed=2, leak=0.0).all()


def test_profiles_carry_speakers_through_silence_and_overlaps_do_not():
    """Nobody speaks for 12 s between two conversations of 40 s, so no overlap shows who is who after it.

    One speaker is silent for 30 s in the second of them.
    """
    chunking = Chunking(5 * RATE, round(2.5 * RATE))
    right = {True: [], False: []}
    for seed in range(8):
        sources = sources_with_silences(75, 100 + 2 * seed, [(0, 20, 32), (1, 20, 32), (seed % 2, 32, 62)])
        lots = np.random.default_rng(seed).integers(0, 2, count_of(chunking, sources.shape[1]))
        lots = [np.array([(0, 1), (1, 0)][lot]) for lot in lots]
        for by_voices, results in right.items():
            results.append(stitched_right(sources, chunking, by_voices, seed, lots=lots)[-3:].all())
    assert np.mean(right[True]) == 1.0
    assert 0.1 < np.mean(right[False]) < 0.9


def test_a_wrong_overlap_does_not_spoil_the_rest():
    """If the model swaps speakers in the middle of a chunk, the next chunks keep the order before it."""
    sources, chunking = sources_with_silences(60, 7), Chunking(10 * RATE, 5 * RATE)
    right = {}
    for by_voices in (True, False):
        stitcher = Stitcher(chunking, RATE, by_voices)
        for k, (estimates, _) in enumerate(in_chunks(sources, chunking, 0, lots=[np.arange(2)] * 20)):
            if k == 4:
                estimates[:, 5 * RATE :] = estimates[::-1, 5 * RATE :].copy()
            stitcher.add(estimates)
        orders = stitcher.orders()
        right[by_voices] = np.concatenate([orders[:4, 0], orders[5:, 0]]) == 0
    assert right[True].all() and not right[False].all()


def test_halves_that_agree_with_themselves_alone_are_not_the_end():
    """With similar voices and one misleading overlap, a chunk-by-chunk order would never recover."""
    generator = np.random.default_rng(0)
    evidence = []
    for k in range(60):
        means = np.array([[0.2], [-0.2]]) + 0.3 * generator.standard_normal((2, 1))
        pitch = TraitStatistics(np.ones(2), means, np.array([[120.0]]), 120)
        cepstra = TraitStatistics(np.zeros(2), np.zeros((2, 16)), np.zeros((16, 16)), 0)
        agreement = np.zeros((2, 2)) if k == 0 else np.eye(2)[:: -1 if k == 30 else 1]
        evidence.append(ChunkEvidence(agreement, agreement, {"cepstra": cepstra, "pitch": pitch}))
    overlaps = [3 * chunk.agreement for chunk in evidence]
    profiles = Profiles([chunk.voices for chunk in evidence], 5.0).running()
    chained = stitching._go_through(overlaps, profiles, stitching._Orders(2))
    assert (chained[:30, 0] == 0).all() and (chained[30:, 0] == 1).all()
    assert (best_orders(evidence, 5.0)[:, 0] == 0).all()


@pytest.mark.parametrize("by_voices", [True, False])
def test_silence_and_level_do_not_count(by_voices):
    chunking = Chunking(5 * RATE, 2 * RATE)
    stitcher = Stitcher(chunking, RATE, by_voices)
    for _ in range(4):
        stitcher.add(np.zeros((2, 5 * RATE), np.float32))
    np.testing.assert_array_equal(stitcher.orders(), [[0, 1]] * 4)
    sources = sources_with_silences(30, 4)
    orders = []
    for level in (1.0, 1e-3):
        stitcher = Stitcher(chunking, RATE, by_voices)
        for estimates, _ in in_chunks(sources, chunking, 5, noise=0):
            stitcher.add((level * estimates).astype(np.float32))
        orders.append(stitcher.orders())
    np.testing.assert_array_equal(*orders)


# -------------------------------------------------------------------------------------------------------------- voices


@pytest.mark.parametrize("pitch_hz", [90.0, 140.0, 230.0])
@pytest.mark.parametrize("rate", [8000, 16000])
def test_pitch_is_that_of_the_voice(pitch_hz, rate):
    sound = voice(4, pitch_hz, (500.0, 1500.0, 2500.0), 0, rate)
    measured = measure_voices(np.stack([sound, 1e-4 * sound]), rate, float(np.mean(sound**2)))["pitch"]
    assert measured.seconds[0] > 1 and measured.seconds[1] == 0
    assert np.exp(measured.means[0, 0]) == pytest.approx(pitch_hz, rel=0.08)


@pytest.mark.parametrize(("power", "share"), [(0.0, 1.0), (10**2.5, 0.5), (3 * 10**2.5, 0.25), (9 * 10**2.5, 0.1)])
def test_agreement_counts_seconds_less_where_frames_are_quiet(power, share):
    """Two frames of 256 samples of power 1, and 100 samples that fill none, in a recording of a power."""
    signal = np.ones((1, 612), np.float32)
    agreement, correlation = compare_overlap(signal, signal, RATE, power)
    np.testing.assert_allclose(agreement, [[2 * 0.032 * share]], rtol=1e-6)
    assert correlation == pytest.approx(1.0)


def test_agreement_is_of_each_with_each_and_of_silence_none():
    """One frame: estimates of energies 256 and 64 that are in no way alike, then swapped, the second inverted."""
    first, second = np.zeros((2, 256), np.float32)
    first[::2], second[1::2] = 2**0.5, 0.5 * 2**0.5
    agreement, correlation = compare_overlap(np.stack([first, second]), np.stack([-second, first]), RATE, 0.0)
    np.testing.assert_allclose(agreement, 0.032 / 320 * np.array([[0, 256], [-64, 0]]), rtol=1e-6)
    np.testing.assert_allclose(correlation, [[0, 1], [-1, 0]], atol=1e-7)
    silent = compare_overlap(np.zeros((2, 256), np.float32), np.stack([first, 0 * first]), RATE, 0.5)
    np.testing.assert_array_equal(silent, np.zeros((2, 2, 2)))
