"""The scores of one utterance, and what happens where a metric has none."""

import itertools
import shlex
import sys

import numpy as np
import ot
import pytest
import torch

from sepkit.evaluation import metrics, scoring
from sepkit.evaluation.scoring import MISSED, SILENT, Hypotheses, ScoringOptions, UtteranceScores, score_utterance
from sepkit.objectives.costs import pairwise_blr_nll
from tests.complaint import complaint

RATE = 8000


@pytest.fixture
def signals() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(2, T) estimates in reverse order, (2, T) sources, (T,) mixture."""
    sources = np.cumsum(np.random.default_rng(0).standard_normal((2, 6000)), axis=1) / 100
    sources -= sources.mean(1, keepdims=True)
    mixture = sources.sum(0)
    return sources[::-1] + 0.1 * mixture, sources, mixture


def scored(
    signals: tuple, options: ScoringOptions, texts: list[str | None] | None = None, **stated: np.ndarray | None
) -> UtteranceScores:
    estimates, sources, mixture = signals
    return score_utterance(Hypotheses(estimates, **stated), sources, mixture, RATE, options, texts)


def test_every_metric_has_its_columns(signals: tuple) -> None:
    pytest.importorskip("pesq", reason="pesq is missing: pip install 'sepkit[metrics]'")
    names = tuple(name for name in scoring.COLUMNS if name not in ("words", "emd"))
    scores = scored(signals, ScoringOptions(names, signal_std=0.1))
    assert list(scores.values) == [column for name in names for column in scoring.COLUMNS[name]]
    assert scores.assignment == [1, 0] and not scores.reasons
    assert all(np.isfinite(values).all() for values in scores.values.values())
    matched, sources = signals[0][::-1], signals[1]
    sdr, sir, sar = metrics.bss_eval_db(matched, sources)
    np.testing.assert_allclose(scores.values["sir_db"], sir)
    np.testing.assert_allclose(scores.values["sar_db"], sar)
    np.testing.assert_allclose(scores.values["sdr_db"], sdr, atol=1e-3)
    np.testing.assert_allclose(scores.values["snr_db"], metrics.snr_db(matched, sources))
    np.testing.assert_allclose(scores.values["estoi"], metrics.stoi(matched, sources, RATE, extended=True))


def test_blr_is_the_log_evidence_a_sample_of_standardized_references(signals: tuple) -> None:
    estimates, sources, mixture = signals
    scores = scored(signals, ScoringOptions(("blr",), signal_std=0.2))
    matched, sources = (torch.from_numpy(x.copy())[:, None] / 0.2 for x in (estimates[::-1], sources))
    expected = -pairwise_blr_nll(matched, sources)[:, 0, 0] / len(mixture)
    np.testing.assert_allclose(scores.values["blr_nats_per_sample"], expected)


def test_a_metric_that_fails_leaves_the_others_alone(signals: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("pesq", reason="pesq is missing: pip install 'sepkit[metrics]'")
    real = package.pesq

    def fails_for_the_second(rate: int, source: np.ndarray, estimate: np.ndarray, mode: str) -> float:
        if np.allclose(source, signals[1][1], atol=1e-4):
            raise package.NoUtterancesError(b"No utterances detected")
        return real(rate, source, estimate, mode)

    options = ScoringOptions(("si_sdr", "sdr", "pesq"))
    whole = scored(signals, options)
    monkeypatch.setattr(package, "pesq", fails_for_the_second)
    monkeypatch.setitem(scoring._MEASURES, "sdr", lambda matched: 1 / 0)
    scores = scored(signals, options)
    assert scores.reasons == {"sdr": "division by zero", "pesq": "s2: No utterances detected"}
    assert scores.values["si_sdr_db"] == whole.values["si_sdr_db"]
    assert scores.values["pesq"][0] == whole.values["pesq"][0] == scores.mean("pesq")
    assert np.isnan(scores.values["pesq"][1]) and np.isnan(scores.values["sdr_db"]).all()


def test_silent_sources_have_an_attenuation_instead(signals: tuple) -> None:
    estimates, sources, mixture = signals
    sources = np.stack([0 * mixture, sources[0], 0 * mixture])
    estimates = np.stack([0.1 * mixture, 0.001 * mixture, sources[1]])
    scores = scored((estimates, sources, mixture), ScoringOptions(("si_sdr",)))
    assert scores.assignment == [-1, 2, -1] and scores.silent_sources == 2
    assert scores.values["attenuation_db"] == pytest.approx([60, np.nan, 20], nan_ok=True)
    assert scores.mean("attenuation_db") == pytest.approx(40)
    assert np.isnan(scores.values["si_sdr_db"][0]) and scores.mean("si_sdr_db") == 100


def test_a_silent_source_without_a_hypothesis_left_has_none(signals: tuple) -> None:
    _, sources, mixture = signals
    scores = scored((mixture[None], np.stack([sources[0], 0 * mixture]), mixture), ScoringOptions(("si_sdr",)))
    assert np.isnan(scores.values["attenuation_db"]).all()


@pytest.mark.parametrize(("is_speaker", "count", "accuracy"), [([True, True], 2, 1.0), ([True, False], 1, 0.0)])
def test_speakers_are_counted(signals: tuple, is_speaker: list[bool], count: int, accuracy: float) -> None:
    options = ScoringOptions(("si_sdr",))
    scores = scored(signals, options, is_speaker=np.array(is_speaker))
    assert scores.speaker_count == count and scores.mean("speaker_count_accuracy") == accuracy
    # Scores are used only if speakers have to be found.
    assert scores.assignment == [1, 0] and scores.missed_sources == 0
    without = scored(signals, options)
    assert without.speaker_count is None and without.mean("speaker_count_accuracy") == 0


@pytest.mark.parametrize("seed", range(30))
def test_speakers_alone_are_matched_by_the_largest_sum(seed: int) -> None:
    """Compare with every way to pair them; hypotheses that are no speakers only count for the best hypothesis."""
    generator = np.random.default_rng(seed)
    n, m = generator.integers(1, 5), generator.integers(1, 5)
    sources = generator.standard_normal((m, 200))
    sources[generator.random(m) < 0.2] = 0
    estimates = generator.standard_normal((n, m)) @ sources + 0.5 * generator.standard_normal((n, 200))
    is_speaker = generator.random(n) < 0.6
    options = ScoringOptions(("si_sdr",), count_speakers=True)
    found = scored((estimates, sources, sources.sum(0) + 0.1), options, is_speaker=is_speaker)
    speaking, kept = np.flatnonzero(sources.any(1)), np.flatnonzero(is_speaker)
    pairs = min(len(speaking), len(kept))
    table = metrics.si_sdr_db(estimates[:, None], sources[None])
    ways = [
        (sum(table[k, j] for k, j in zip(ks, js, strict=True)), dict(zip(js, ks, strict=True)))
        for js in itertools.combinations(speaking, pairs)
        for ks in itertools.permutations(kept, pairs)
    ]
    best = max(ways, key=lambda way: way[0])[1]
    assert found.assignment == [best.get(j, MISSED if j in speaking else SILENT) for j in range(m)]
    assert found.missed_sources == len(speaking) - pairs and found.active_sources == len(speaking)
    values = [table[best[j], j] if j in best else np.nan for j in range(m)]
    np.testing.assert_allclose(found.values["si_sdr_db"], values)
    of_best = [table[:, j].max() if j in speaking else np.nan for j in range(m)]
    np.testing.assert_allclose(found.values["mcl_si_sdr_db"], of_best)
    assert found.winners == [int(table[:, j].argmax()) if j in speaking else SILENT for j in range(m)]


def test_hypotheses_are_weighted_by_their_scores() -> None:
    """The weighted sum and the expectation, for sources that speak; weights of other hypotheses do not count."""
    generator = np.random.default_rng(0)
    sources = generator.standard_normal((3, 300))
    sources[1] = 0
    estimates = generator.standard_normal((4, 3)) @ sources + generator.standard_normal((4, 300))
    weights, options = np.array([0.4, 0.3, 0.2, 0.1]), ScoringOptions(("si_sdr",))
    found = scored((estimates, sources, sources.sum(0) + 0.1), options, weights=weights)
    mixed = sum(w * e for w, e in zip(weights, estimates, strict=True))
    for place, source in enumerate(sources):
        if place == 1:
            assert np.isnan(found.values["weighted_si_sdr_db"][1]) and np.isnan(found.values["drawn_si_sdr_db"][1])
            continue
        assert found.values["weighted_si_sdr_db"][place] == pytest.approx(float(metrics.si_sdr_db(mixed, source)))
        each = [w * float(metrics.si_sdr_db(e, source)) for w, e in zip(weights, estimates, strict=True)]
        assert found.values["drawn_si_sdr_db"][place] == pytest.approx(sum(each))
        assert found.values["drawn_si_sdr_db"][place] <= found.values["mcl_si_sdr_db"][place]
    for other in (None, weights[:3]):
        again = scored((estimates, sources, sources.sum(0) + 0.1), options, weights=other)
        assert np.isnan(again.mean("weighted_si_sdr_db"))


def test_masses_of_hypotheses_are_moved_to_sources() -> None:
    """Equal masses of as many hypotheses: the best permutation; one mass alone: that hypothesis; else in between."""
    generator = np.random.default_rng(0)
    sources = generator.standard_normal((3, 300))
    estimates = generator.standard_normal((4, 3)) @ sources + generator.standard_normal((4, 300))
    mixture, options = sources.sum(0) + 0.1, ScoringOptions(("si_sdr", "emd"))
    equal = scored((estimates[:3], sources, mixture), options, weights=np.full(3, 1 / 3))
    np.testing.assert_allclose(equal.values["emd_si_sdr_db"], equal.values["si_sdr_db"])
    alone = scored((estimates, sources, mixture), options, weights=np.array([0, 0, 1, 0]))
    np.testing.assert_allclose(alone.values["emd_si_sdr_db"], metrics.si_sdr_db(estimates[2], sources))
    some = scored((estimates, sources, mixture), options, weights=np.array([0.4, 0.3, 0.2, 0.1]))
    assert some.mean("drawn_si_sdr_db") < some.mean("emd_si_sdr_db") < some.mean("mcl_si_sdr_db")
    assert "no scores" in scored((estimates, sources, mixture), options).reasons["emd"]


def test_masses_of_float32_are_moved_as_pot_moves_them() -> None:
    """Rounded, they are not quite what the sources take."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        table = generator.normal(0, 20, generator.integers([1, 1], [12, 5]))
        masses = torch.from_numpy(generator.normal(0, 3, len(table))).float().softmax(0).numpy()
        equal = np.full(table.shape[1], 1 / table.shape[1])
        least = ot.emd2(masses.astype(float) / masses.sum(dtype=float), equal, table.max() - table)
        assert scoring._transported(table, masses).mean() == pytest.approx(table.max() - least, abs=1e-6)


def test_no_scores_no_number_of_speakers(signals: tuple) -> None:
    complaint(lambda: scored(signals, ScoringOptions(("si_sdr",), count_speakers=True)), "without scores")


def test_there_is_no_improvement_over_one_speaker_alone(signals: tuple) -> None:
    estimates, sources, _ = signals
    options = ScoringOptions(("si_sdr", "sdr", "snr"))
    alone = scored((estimates, sources[:1], sources[0]), options)
    assert alone.mixture_is_source
    for name in ("si_sdr", "sdr", "snr"):
        assert np.isfinite(alone.values[f"{name}_db"]).all() and np.isnan(alone.values[f"{name}i_db"]).all()
    noise = np.random.default_rng(1).standard_normal(6000)
    in_noise = scored((estimates, sources[:1], sources[0] + 0.05 * noise), options)
    assert not in_noise.mixture_is_source and np.isfinite(in_noise.values["si_sdri_db"]).all()
    assert scored((estimates, np.stack([sources[0], 0 * sources[0]]), sources[0]), options).mixture_is_source
    assert not scored(signals, options).mixture_is_source


def test_words_are_those_that_a_command_prints(signals: tuple) -> None:
    command = shlex.join([sys.executable, "-c", "print('Yes, it is!')"]) + " {wav}"
    scores = scored(signals, ScoringOptions(("words",), asr_command=command), texts=["yes it was", None])
    assert scores.values["word_accuracy"] == pytest.approx([2 / 3, np.nan], nan_ok=True)
    assert scores.word_counts == [[1, 3]] and "no text" in scores.reasons["words"]
    broken = ScoringOptions(("words",), asr_command="no-such-command")
    assert "no-such-command" in scored(signals, broken, texts=["yes", "no"]).reasons["words"]


@pytest.mark.parametrize(
    ("options", "rate", "message"),
    [
        (ScoringOptions(()), 8000, "found nothing"),
        (ScoringOptions(("loudness",)), 8000, "loudness"),
        (ScoringOptions(("blr",)), 8000, "--signal-std"),
        *((ScoringOptions(("blr",), signal_std=std), 8000, "above 0") for std in (0.0, -1.0, np.inf)),
        (ScoringOptions(("words",)), 8000, "--asr-command"),
        (ScoringOptions(("pesq",)), 44100, "44100 Hz"),
    ],
)
def test_what_cannot_be_measured_is_said_first(options: ScoringOptions, rate: int, message: str) -> None:
    complaint(lambda: scoring.check_metrics(options, [rate]), message)
