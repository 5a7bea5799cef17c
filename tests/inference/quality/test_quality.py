import functools
import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
import yaml

from sepkit.choices import to_dict
from sepkit.config import DeterministicConfig
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry, read_manifest, write_manifest
from sepkit.data.mixing import mix_entry
from sepkit.evaluation.metrics import si_sdr_db
from sepkit.inference import Separator, load_model, separate_files
from sepkit.inference.calibration import calibrate
from sepkit.inference.quality.features import recording_features
from sepkit.inference.quality.predictor import fit_quality, generic_predictor, read_quality, write_quality
from sepkit.inference.quality.regression import LEAST_COVERAGE, LogisticRegression, fit_ridge
from sepkit.inference.quality.single_speaker import SingleSpeakerDetector
from sepkit.inference.runners.base import AGREEMENT
from sepkit.models import build_model, save_model
from sepkit.models.saved import weights_fingerprint
from tests.complaint import complaint
from tests.tiny_models import LONG_STEPS

RATE = 8000
DETERMINISTIC = replace(LONG_STEPS, encoding=DeterministicConfig("linear"), masks=DeterministicConfig("sigmoid"))


def synthetic(mixtures=40, features=4, seed=0, noise=1.0):
    """Features, targets and mixtures: two examples a mixture, whose noise is partly shared."""
    generator = np.random.default_rng(seed)
    table = {f"x{i}": 10**i * generator.standard_normal(2 * mixtures) + i for i in range(features)}
    numbers = np.repeat(np.arange(mixtures), 2)
    shared = generator.standard_normal(mixtures)[numbers]
    own = generator.standard_normal(2 * mixtures)
    return table, 8 + 3 * table["x0"] - 0.2 * table["x1"] + noise * (0.6 * shared + 0.8 * own), numbers


# ------------------------------------------------------------------------------------------------------------- fitting


def by_hand(table, targets, ridge):
    """Coefficients of standardized features and the intercept, by the normal equations."""
    z = np.stack([(v - v.mean()) / v.std() for v in table.values()], axis=-1)
    design = np.column_stack([np.ones(len(z)), z])
    penalty = np.diag([0.0] + [ridge] * z.shape[1])
    return np.linalg.solve(design.T @ design + penalty, design.T @ targets), design, penalty


def left_out(table, targets, mixtures, ridge):
    """Predictions for each mixture by a fit without it."""
    _, design, penalty = by_hand(table, targets, ridge)
    expected = np.empty_like(targets)
    for mixture in np.unique(mixtures):
        rest = mixtures != mixture
        a = design[rest]
        expected[~rest] = design[~rest] @ np.linalg.solve(a.T @ a + penalty, a.T @ targets[rest])
    return expected


def test_ridge_solves_the_normal_equations():
    table, targets, mixtures = synthetic()
    fitted = fit_ridge(table, targets, mixtures)[0]
    solution, design, _ = by_hand(table, targets, fitted.ridge)
    assert fitted.features == list(table)
    np.testing.assert_allclose(fitted.coefficients, solution[1:], rtol=1e-8)
    assert fitted.intercept == pytest.approx(solution[0])
    np.testing.assert_allclose(fitted.predict(table), design @ solution, rtol=1e-8)


def test_predictions_left_out_are_those_of_fits_without_the_mixture():
    table, targets, mixtures = synthetic()
    fitted, found = fit_ridge(table, targets, mixtures)
    expected = left_out(table, targets, mixtures, fitted.ridge)
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    assert fitted.error_db == pytest.approx(np.sqrt(np.mean((expected - targets) ** 2)))
    assert fitted.correlation == pytest.approx(np.corrcoef(expected, targets)[0, 1])
    assert fitted.rank_correlation == pytest.approx(scipy.stats.spearmanr(expected, targets)[0])


def test_strength_is_best_where_mixtures_are_left_out():
    table, targets, mixtures = synthetic(mixtures=15, features=8, noise=6.0)
    fitted, _ = fit_ridge(table, targets, mixtures)
    left = [targets - left_out(table, targets, mixtures, factor * fitted.ridge) for factor in (1.0, 0.3, 3.0)]
    best, *others = (np.square(errors).sum() for errors in left)
    assert best <= min(others)
    assert fitted.ridge > 1


def test_nothing_to_learn_is_told_so():
    table, _, mixtures = synthetic(mixtures=100)
    targets = np.random.default_rng(1).standard_normal(200)
    fitted = fit_ridge(table, targets, mixtures)[0]
    assert abs(fitted.rank_correlation) < 0.25 and fitted.error_db == pytest.approx(targets.std(), rel=0.05)


@pytest.mark.parametrize("skewed", [False, True])
def test_intervals_hold_the_share_they_promise(skewed):
    inside, below, above = [], [], []
    for seed in range(40):
        table, targets, mixtures = synthetic(mixtures=250, seed=seed)
        if skewed:
            targets = targets - np.random.default_rng(seed + 1000).exponential(4.0, len(targets))
        used, new = mixtures < 50, mixtures >= 50
        fitted = fit_ridge({k: v[used] for k, v in table.items()}, targets[used], mixtures[used])[0]
        ends = fitted.interval(fitted.predict({k: v[new] for k, v in table.items()}), None)
        below.append(np.mean(targets[new] < ends[:, 0]))
        above.append(np.mean(targets[new] > ends[:, 1]))
        inside.append(1 - below[-1] - above[-1])
    assert 0.88 < np.mean(inside) < 0.92
    assert 0.03 < np.mean(below) < 0.065 and 0.03 < np.mean(above) < 0.065


def test_the_interval_is_as_wide_as_the_features_let_expect_and_holds_in_every_kind():
    """Errors grow with the feature, and one kind has larger ones than the features tell."""
    generator = np.random.default_rng(0)
    wide, kinds, mixtures = generator.uniform(-1, 1, 3000), np.repeat([0, 1], [2000, 1000]), np.arange(3000)
    errors = 5 * np.exp(wide) * (1 + kinds) * generator.standard_normal(3000)
    table = {"wide": wide, "other": generator.standard_normal(3000)}
    fitted = fit_ridge(table, 5 * wide + errors, mixtures)[0]
    assert fitted.half_width_db == pytest.approx((fitted.interval_db[1] - fitted.interval_db[0]) / 2)
    fitted.fit_interval(errors, table, mixtures, kinds)
    assert [type(end) for end in fitted.interval_db] == [float, float]  # which YAML holds
    low, high = (fitted.interval(np.zeros(3000), table)).T
    # The logarithm of the width has a slope of 1 over `wide`, and none over the other.
    slopes = np.linalg.lstsq(np.stack([wide, table["other"], np.ones(3000)], 1), np.log(high - low), rcond=None)[0]
    assert slopes[:2] == pytest.approx([1, 0], abs=0.1)
    inside = (low <= errors) & (errors <= high)
    of_kinds = [inside[kinds == kind].mean() for kind in (0, 1)]
    assert of_kinds[0] > 0.95 and of_kinds[1] == pytest.approx(LEAST_COVERAGE, abs=0.01)
    ends = fitted.interval(np.zeros(1), {name: np.zeros(1) for name in table})[0]
    assert fitted.half_width_db == pytest.approx(np.ptp(ends) / 2, rel=0.05)
    assert np.isnan(fitted.interval(np.zeros(1), None)).all()


def test_kinds_count_the_same_however_many_examples_they_have():
    generator = np.random.default_rng(1)
    kinds, mixtures = np.repeat([0, 1], [4000, 400]), np.arange(4400)
    errors = np.where(kinds == 1, 1.5, 1.0) * generator.standard_normal(4400)
    table = {"nothing": generator.standard_normal(4400)}
    fitted = fit_ridge(table, errors, mixtures)[0]
    fitted.fit_interval(errors, table, mixtures, kinds)
    low, high = fitted.interval(np.zeros(4400), table).T
    outside = (errors < low) | (errors > high)
    assert np.mean([outside[kinds == kind].mean() for kind in (0, 1)]) < 0.105


def test_a_kind_of_few_examples_widens_nothing():
    generator = np.random.default_rng(2)
    errors, table = generator.standard_normal(15), {"nothing": generator.standard_normal(15)}
    fitted = fit_ridge(table, errors, np.arange(15))[0]
    fitted.fit_interval(errors, table, np.arange(15), np.repeat([0, 1], [14, 1]))
    assert np.isfinite(fitted.interval(np.zeros(15), table)).all() and fitted.half_width_db < 10


def test_features_that_do_not_vary_are_left_out():
    table, targets, mixtures = synthetic()
    table["constant"] = np.full(len(targets), 3.7) + 1e-13 * np.arange(len(targets))
    fitted = fit_ridge(table, targets, mixtures)[0]
    assert "constant" not in fitted.features
    np.testing.assert_allclose(fitted.predict(table), fit_ridge(*synthetic())[0].predict(table))


def test_far_from_all_examples_predictions_stop_growing():
    table, targets, mixtures = synthetic()
    fitted = fit_ridge(table, targets, mixtures)[0]
    far, farther = ({name: np.array([value]) for name in table} for value in (1e6, 1e9))
    assert fitted.predict(far) == pytest.approx(fitted.predict(farther))
    assert np.isnan(fitted.predict({name: np.array([np.nan]) for name in table}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, y, g: ({k: v[:11] for k, v in t.items()}, y[:11], g[:11]), "found 11 .* expected 12 or more"),
        (lambda t, y, g: (t, y, np.zeros_like(g)), "in 1 mixtures"),
        (lambda t, y, g: (t, np.ones_like(y), g), "separated alike"),
        (lambda t, y, g: ({"x": np.ones_like(y)}, y, g), "looks alike"),
    ],
)
def test_what_cannot_be_fitted(change, words):
    complaint(lambda: fit_ridge(*change(*synthetic())), words)


# --------------------------------------------------------------------------------------------------------------- files


def predictor(**changed):
    table, targets, mixtures = synthetic()
    described = {"weights": "abc", "hypotheses": 2, "manifest": "dev.jsonl"}
    return fit_quality(table, targets, mixtures, **(described | changed))


def test_examples_with_missing_features_are_left_out():
    table, targets, mixtures = synthetic()
    table["x0"][:2], table["x1"][2], targets[4] = np.nan, np.inf, np.nan
    found = fit_quality(table, targets, mixtures, weights="", hypotheses=2, manifest="")
    assert (found.examples, found.mixtures) == (76, 39)
    assert set(found.model.features) == set(table)


def test_the_interval_is_that_of_errors_by_fits_without_the_mixture():
    """Of harder examples only the interval is made, and it holds as many of them."""
    table, targets, mixtures = synthetic()
    model, left_out = fit_ridge(table, targets, mixtures)
    model.fit_interval(targets - left_out, table, mixtures, np.zeros(len(targets)))
    assert predictor().model == model
    generator = np.random.default_rng(9)
    harder = {name: generator.normal(values.mean(), values.std(), 40) for name, values in table.items()}
    wanted = model.predict(harder) + generator.normal(0, 9 * model.error_db, 40)
    only = np.repeat([False, True], [len(targets), 40])
    both = {name: np.append(table[name], harder[name]) for name in table}
    found = fit_quality(
        both, np.append(targets, wanted), np.append(mixtures, np.zeros(40, int)), only.astype(str), only,
        weights="abc", hypotheses=2, manifest="dev.jsonl",
    )  # fmt: skip
    assert found.model.coefficients == model.coefficients and found.examples == len(targets)
    low, high = (found.model.interval(model.predict(harder), harder) - wanted[:, None]).T
    assert np.mean((low <= 0) & (high >= 0)) >= LEAST_COVERAGE
    assert found.model.half_width_db > 2 * model.half_width_db


ONE = LogisticRegression(["x0"], [0.0], [1.0], [1.0], 0.0, 0.0, 1.0, 0.0)
RULE = SingleSpeakerDetector(ONE, -1.0, "voices", 1.0, 0.0, {"log_kurtosis": (1.0, 3.0)})


def test_what_is_far_from_all_that_it_was_fitted_on_is_out_of_domain():
    ridge = predictor().model
    center = dict(zip(ridge.features, map(np.array, zip(ridge.means, ridge.means, strict=True)), strict=True))
    assert predictor().out_of_domain(None) is None and predictor().out_of_domain(center) is False
    name, scale = ridge.features[0], ridge.scales[0]
    for deviations, expected in ((3.9, False), (-4.1, True)):
        moved = center | {name: center[name] + deviations * scale * np.array([1, 0])}
        assert predictor().out_of_domain(moved) is expected
    # The length is not what a recording sounds like, and the factors of a product count by themselves.
    for other in ("log_duration_seconds", f"{name}*{name}"):
        longer = replace(predictor(), model=replace(ridge, features=[other, *ridge.features[1:]]))
        assert longer.out_of_domain(center | {other: center[name] + 10 * scale}) is False


def test_files_are_plain_and_come_back(tmp_path):
    written = replace(predictor(), single_speaker=RULE)
    path = write_quality(written, tmp_path)
    assert path == tmp_path / "quality.yaml" and "!!" not in path.read_text()
    read = read_quality(tmp_path, "abc", 2)
    assert read == written and read.digest() == written.digest()
    assert replace(written, mixtures=4).digest() != written.digest()
    assert read_quality(tmp_path / "none", "abc", 2) is None


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("weights",), "other", "other weights"),
        (("hypotheses",), 3, "3 hypotheses"),
        (("format",), 2, "found format 2, expected 4"),
        (("mixtures",), "many", "mixtures: found 'many', expected a whole number"),
        (("model", "intercept"), None, "nothing given, expected a value"),
        (("model", "intercept"), float("nan"), "not finite"),
        (("model", "scales"), [1.0], "not one for each feature"),
        (("model", "scales"), [0.0] * 4, "not positive"),
        (("model", "features"), [], "not one for each feature"),
        (("model", "spread"), [0.0], "not one for each feature"),
        (("surprise",), 1, "surprise: unknown field"),
        (("features_version",), 2, "found features_version 2, expected 6"),
        (("model", "interval_db"), [float("nan"), 1.0], "interval that is not finite"),
        (("single_speaker", "one", "scales"), [0.0], "not positive"),
        (("single_speaker", "one", "coefficients"), [], "not one for each feature"),
        (("single_speaker", "encoder"), None, "nothing given, expected a value"),
        (("single_speaker", "features"), ["x0"], "features: unknown field"),
    ],
)
def test_files_of_other_models_and_damaged_ones_are_refused(tmp_path, keys, value, words):
    data = json.loads(json.dumps(to_dict(replace(predictor(), single_speaker=RULE))))
    *above, last = keys
    place = functools.reduce(dict.__getitem__, above, data)
    if value is None:
        del place[last]
    else:
        place[last] = value
    (tmp_path / "quality.yaml").write_text(yaml.safe_dump(data))
    line = complaint(lambda: read_quality(tmp_path, "abc", 2), words)
    assert "sepkit calibrate" in line and "quality.yaml" in line


def test_the_predictor_of_any_model_rises_with_agreement_and_pauses_and_falls_where_estimates_are_alike():
    found = generic_predictor(3)
    assert found.model.features == [AGREEMENT, "correlation_db", "estimate_level_deviation_db"]
    assert (found.hypotheses, found.views, found.of_any_model) == (3, 2, True)
    agreement, likeness, pauses = found.model.coefficients
    assert agreement > 0 > likeness and pauses > 0
    # One view has no agreement, and nothing is predicted then.
    assert np.isnan(found.predict({"correlation_db": np.zeros(3)})[0]).all()


@pytest.mark.parametrize("text", ["a: [", "just words", "- 1", ""])
def test_files_that_are_no_mapping_are_refused(tmp_path, text):
    (tmp_path / "quality.yaml").write_text(text)
    complaint(lambda: read_quality(tmp_path, "abc", 2), "sepkit calibrate")


# ---------------------------------------------------------------------------------------------------------- separators


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A manifest of mixtures of tones and noises of many levels, some of them of no use."""
    folder = tmp_path_factory.mktemp("corpus")
    generator = np.random.default_rng(0)
    entries = []
    for number in range(40):
        num_samples = 4000 + 40 * number
        tone = 0.3 * np.sin(2 * np.pi * (200 + 40 * number) / RATE * np.arange(num_samples))
        noise = 0.01 * (1 + number % 7) * generator.standard_normal(num_samples)
        for k, source in enumerate((tone, noise)):
            audio.write(folder / f"{number}_{k}.wav", source.astype(np.float32), RATE)
        # Calibration hears all that there is of a speaker: here eight recordings, of 4 to 5 s.
        parts = [SourceEntry(path=f"{number}_{k}.wav", speaker=f"{number % 5}_{k}") for k in range(2)]
        entries.append(MixtureEntry(id=f"m{number}", sample_rate=RATE, num_samples=num_samples, sources=parts))
    audio.write(folder / "silence.wav", np.zeros(8000, np.float32), RATE)
    silent = SourceEntry(path="silence.wav", speaker="x")
    some = entries[0].sources[0]
    entries += [
        MixtureEntry(id="silent", sample_rate=RATE, num_samples=8000, sources=[silent, silent]),
        MixtureEntry(id="three", sample_rate=RATE, num_samples=4000, sources=[some, some, some]),
        MixtureEntry(id="short", sample_rate=RATE, num_samples=1000, sources=[some]),
        MixtureEntry(id="none", sample_rate=RATE, num_samples=4000, sources=[], mixture="0_0.wav"),
        MixtureEntry(id="gone", sample_rate=RATE, num_samples=4000, sources=[replace(some, path="gone.wav")]),
    ]
    return write_manifest(folder / "dev.jsonl", entries)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory, corpus):
    """EXP with a variational model and its predictor."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("exp")
    model = build_model(LONG_STEPS)
    save_model(model, folder / "model")
    found = calibrate(Separator(model), corpus)
    write_quality(found.predictor, folder / "model")
    return folder, found


def recording(num_samples=6000, seed=0):
    return 0.1 * np.random.default_rng(seed).standard_normal(num_samples).astype(np.float32)


def test_mixtures_of_no_use_are_counted(calibrated):
    _, found = calibrated
    assert set(found.skipped) == {"silent", "three", "short", "none", "gone"}
    assert (found.predictor.mixtures, found.predictor.examples) == (40, 80)
    assert found.predictor.weights
    assert {"mask_spread_db", "mask_rate_nats_per_frame"} <= set(found.predictor.model.features)


def test_a_separator_predicts_what_the_predictor_says(calibrated):
    folder, found = calibrated
    separator = load_model(folder)
    waveform = recording()
    separated = separator.separate(waveform, RATE)
    centered = waveform - waveform.mean(dtype=np.float64)
    # Of a model whose level was never measured.
    leveled = (0.05 * centered / centered.std()).astype(np.float32)
    features = recording_features(separator.runner, leveled, separator.runner.run(leveled[None], features=True))
    expected = found.predictor.model.predict(features)
    np.testing.assert_allclose(separated.predicted_si_sdr_db, expected, rtol=1e-5)
    low, high = (found.predictor.model.interval(expected, features) - expected[:, None]).T
    assert separated.predicted_interval_db.shape == (2, 2)
    np.testing.assert_allclose(separated.predicted_interval_db[:, 0], expected + low, rtol=1e-5)
    np.testing.assert_allclose(separated.predicted_interval_db[:, 1], expected + high, rtol=1e-5)


def test_predictions_are_of_the_si_sdr_that_evaluation_measures(corpus, calibrated):
    """Fitted values go through the mean of the targets: that of PIT-matched SI-SDR over sources."""
    folder, found = calibrated
    separator = load_model(folder, predict=False)
    scores = []
    for entry in list(read_manifest(corpus))[:40]:
        mixed = mix_entry(entry)
        estimates = separator.separate(mixed.mixture, RATE).estimates.astype(np.float64)
        table = np.array([[si_sdr_db(e, s) for s in mixed.sources.astype(np.float64)] for e in estimates])
        scores.append(max(table[0, 0] + table[1, 1], table[0, 1] + table[1, 0]) / 2)
    targets_mean = found.predictor.model.intercept  # Centered features: the intercept is the mean, but for limits.
    assert np.mean(scores) == pytest.approx(targets_mean, abs=0.3)


def test_what_comes_from_a_separator_does_not_depend_on_its_prediction(calibrated):
    folder, _ = calibrated
    with_it, without = load_model(folder), load_model(folder / "model", predict=False)
    assert with_it.quality is not None and without.quality is None
    waveform = torch.from_numpy(recording())
    first, second = with_it.separate(waveform, RATE), without.separate(waveform, RATE)
    # Alone, estimates are decoded tile by tile: sums are in another order.
    torch.testing.assert_close(first.estimates, second.estimates, rtol=1e-5, atol=1e-6)
    # Rates come with a prediction, which needs them, or when they are asked for.
    asked = without.separate(waveform, RATE, evidence=True).rates
    assert second.rates is None and first.rates == {name: asked[name] for name in first.rates}
    assert isinstance(first.predicted_si_sdr_db, torch.Tensor)
    assert second.predicted_si_sdr_db is None and second.predicted_interval_db is None
    assert with_it.fingerprint() != without.fingerprint() == weights_fingerprint(without.model)


@pytest.mark.parametrize("waveform", [np.zeros(8000, np.float32), recording(3000), recording(1)])
def test_silence_and_short_recordings_have_no_prediction(calibrated, waveform):
    separated = load_model(calibrated[0]).separate(waveform, RATE)
    assert np.isnan(separated.predicted_si_sdr_db).all() and separated.predicted_si_sdr_db.shape == (2,)
    assert np.isnan(separated.predicted_interval_db).all() and separated.predicted_interval_db.shape == (2, 2)


def test_another_models_predictor_is_refused_or_left_out(tmp_path, calibrated):
    _, found = calibrated
    torch.manual_seed(1)
    save_model(build_model(LONG_STEPS), tmp_path)
    write_quality(found.predictor, tmp_path)
    complaint(lambda: load_model(tmp_path), "other weights")
    assert load_model(tmp_path, predict=False).quality is None


def test_a_deterministic_model_has_a_predictor_too(corpus):
    separator = Separator(build_model(DETERMINISTIC))
    separator.quality = calibrate(separator, corpus, first=30).predictor
    assert "mask_spread_db" not in separator.quality.model.features
    assert np.isfinite(separator.separate(recording(), RATE).predicted_si_sdr_db).all()


def test_a_manifest_with_single_speakers_is_taken_as_it_is(corpus):
    """Two conditions of two speakers, single speakers, more speakers than outputs, and a recording of nobody."""
    entries = list(read_manifest(corpus))[:40]
    one, three = entries[0].sources[0], [*entries[0].sources, entries[1].sources[0]]
    made = [replace(entry, corpus="even" if number % 2 else "odd") for number, entry in enumerate(entries)]
    made += [replace(entry, id=f"one{entry.id}", sources=entry.sources[:1]) for entry in entries[:30]]
    made += [replace(entries[0], id=f"three{k}", sources=three, num_samples=4000, corpus="three") for k in range(3)]
    made.append(MixtureEntry(id="nobody", sample_rate=RATE, num_samples=4000, sources=[], mixture=one.path))
    found = calibrate(Separator(build_model(DETERMINISTIC)), write_manifest(corpus.parent / "complete.jsonl", made))
    assert found.skipped == {}
    # Three speakers widen the interval, but the prediction is of the others.
    assert (found.predictor.mixtures, found.predictor.examples) == (40, 80)
    assert found.predictor.model.spread is not None and np.isfinite(found.predictor.model.interval_db).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"first": 0}, "first: found 0"), ({"first": 3}, "expected .* or more"), ({}, "no usable mixture")],
)
def test_what_cannot_be_calibrated(corpus, options, words):
    manifest = corpus
    if not options:
        manifest = corpus.with_name("useless.jsonl")
        manifest.write_text("".join(corpus.read_text().splitlines(keepends=True)[-2:]))
    complaint(lambda: calibrate(Separator(build_model(DETERMINISTIC)), manifest, **options), words)


# --------------------------------------------------------------------------------------------------------------- files


def test_json_files_tell_predictions_and_what_is_not_known(tmp_path, calibrated):
    separator = load_model(calibrated[0])
    waveform = recording()
    audio.write(tmp_path / "x.wav", waveform, RATE)
    audio.write(tmp_path / "silence.wav", np.zeros(8000, np.float32), RATE)
    inputs, out = [tmp_path / "x.wav", tmp_path / "silence.wav"], tmp_path / "out"
    assert separate_files(inputs, separator, out).separated == 2
    told = json.loads((out / "x.json").read_text())
    expected = separator.separate(waveform, RATE)
    assert told["predicted_si_sdr_db"] == pytest.approx(expected.predicted_si_sdr_db.tolist(), abs=1e-3)
    np.testing.assert_allclose(told["predicted_interval_db"], expected.predicted_interval_db, atol=1e-3)
    assert told["rates"] == pytest.approx(expected.rates, rel=1e-4)
    told = json.loads((out / "silence.json").read_text())
    assert told["predicted_si_sdr_db"] == [None, None] and told["predicted_interval_db"] == [[None, None]] * 2
    assert separate_files(inputs, separator, out).already_done == 2
    assert separate_files(inputs, load_model(calibrated[0], predict=False), out).separated == 2
    assert json.loads((out / "x.json").read_text())["predicted_si_sdr_db"] is None
