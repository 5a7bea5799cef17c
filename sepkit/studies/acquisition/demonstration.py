"""Show one model closely: figures of its representation and of a session, and its questions to some people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sepkit.files import write_text
from sepkit.reporting.markdown import markdown_table
from sepkit.studies.acquisition.audiogram import NOT_A_MEDICAL_DEVICE, read_audiograms
from sepkit.studies.acquisition.calibration import complete_data, read_for
from sepkit.studies.acquisition.config import EARS, FREQUENCIES_HZ, threshold_name
from sepkit.studies.acquisition.figures import (
    archetype_figure,
    information_figure,
    predictor_figure,
    representation_figure,
    session_figure,
    stopping_figure,
)
from sepkit.studies.acquisition.measures import area, stopping_index
from sepkit.studies.acquisition.session import AudiogramModel, load_audiogram_model
from sepkit.studies.acquisition.simulation import play
from sepkit.studies.acquisition.stopping import features_of, fit_stopping
from sepkit.studies.acquisition.tables import save_figure

_SHOWN_STEPS = (0, 1, 2, 3, 5)
_THRESHOLD_DB = 5.0


def _both(*thresholds: float) -> dict[str, float]:
    return {threshold_name(ear, hz): db for ear in EARS for hz, db in zip(FREQUENCIES_HZ, thresholds, strict=True)}


def _ears(right: tuple[float, ...], left: tuple[float, ...]) -> dict[str, float]:
    table = dict(zip(EARS, (right, left), strict=True))
    return {threshold_name(ear, hz): db for ear in EARS for hz, db in zip(FREQUENCIES_HZ, table[ear], strict=True)}


PEOPLE: dict[str, tuple[float, dict[str, float]]] = {
    "sloping loss, both ears alike": (70.0, _both(20, 25, 35, 45, 55, 60, 65)),
    "flat loss": (50.0, _both(40, 40, 40, 40, 40, 40, 40)),
    "left ear 30 dB worse": (60.0, _ears((15, 20, 25, 30, 40, 45, 45), (45, 50, 55, 60, 70, 75, 75))),
    "deaf right ear": (45.0, _ears((120,) * 7, (10, 10, 10, 15, 20, 25, 25))),
    "child with normal hearing": (8.0, _both(0, 0, 0, 0, 5, 5, 0)),
}
"""Name -> age, and what would be measured at each threshold, dB HL."""


def example_sequence(
    model: AudiogramModel, age: float, thresholds: dict[str, float], stop_at_db: float = _THRESHOLD_DB
) -> list[dict[str, object]]:
    """Return the steps until the model stops: step, expected error, whether it is out of range, true error, next.

    Args:
        model: a calibrated one.
        age: years.
        thresholds: name -> dB HL, all of them.
        stop_at_db: error that is good enough; 0: everything is measured.
    """
    session = model.session(age)
    steps: list[dict[str, object]] = []
    while True:
        estimate = session.estimate()
        error = float(np.sqrt(np.mean([(estimate[name] - db) ** 2 for name, db in thresholds.items()])))
        done, upcoming = session.stop(stop_at_db), session.next()
        steps.append(
            {
                "measured": session.count,
                "expected_error_db": session.expected_error_db(),
                "error_db": error,
                "out_of_range": session.out_of_range(),
                "next": None if done else upcoming,
            }
        )
        if done or upcoming is None:
            return steps
        session.measured_all({upcoming: thresholds[upcoming]})


def write_examples(model: str | Path, out: str | Path, stop_at_db: float = _THRESHOLD_DB) -> str:
    """Write sequences for people typed in by hand to the Markdown file OUT; return the text.

    Args:
        model: as in `load_audiogram_model`.
        out: the Markdown file.
        stop_at_db: expected error at which a session stops, dB.

    Raises:
        UserError: no such model, or one of other dimensions.
    """
    loaded = load_audiogram_model(model)
    rows = []
    for name, (age, thresholds) in PEOPLE.items():
        steps = example_sequence(loaded, age, thresholds, stop_at_db)
        last = steps[-1]
        expected = last["expected_error_db"]
        order = " ".join(str(step["next"]) for step in steps if step["next"] is not None)
        # A few measurements may fit an ordinary person: find out when more of them show the difference.
        whole = example_sequence(loaded, age, thresholds, 0.0)
        rows.append(
            [
                f"{name}, {age:g} years",
                order,
                str(last["measured"]),
                "" if expected is None else f"{expected:.1f}",
                f"{last['error_db']:.1f}",
                told_after(steps),
                told_after(whole),
            ]
        )
    header = [
        "who",
        "measured, in order",
        "until",
        "expected error [dB]",
        "error [dB]",
        "said to be out of range after",
        "if everything is measured, after",
    ]
    text = markdown_table(header, rows, words=(0, 1, 5, 6)) + f"\n{NOT_A_MEDICAL_DEVICE}.\n"
    write_text(out, text)
    return text


def told_after(steps: Sequence[dict[str, object]]) -> str:
    """Return after how many measurements a person is said to be out of range, such as "3, 5 to 14"; "never".

    Args:
        steps: of `example_sequence`.
    """
    runs: list[list[int]] = []
    for place in (place for place, step in enumerate(steps) if step["out_of_range"]):
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) or "never"


def draw_figures(
    model: str | Path,
    manifest: str | Path,
    dev: str | Path,
    out: str | Path,
    archetypes: str | Path | None = None,
    first: int | None = None,
) -> Path:
    """Draw figures 1 to 5 of the thesis as PNG files; return their folder.

    Args:
        model: folder that `sepkit train` wrote; with two latent dimensions its representation is drawn too.
        manifest: test data.
        dev: validation data, for the rules of stopping.
        out: the folder.
        archetypes: of which synthetic data are combinations.
        first: number of data of each file; None: all.

    Raises:
        UserError: no such model or file.
    """
    folder, loaded = Path(out), load_audiogram_model(model)
    vae, draws = loaded.vae, loaded.draws
    tests, validation = (complete_data(read_for(vae, file), first) for file in (manifest, dev))
    if archetypes is not None:
        corners = read_audiograms(archetypes, vae.config.dimensions).values
        save_figure(archetype_figure(vae, corners), folder / "figure_1_archetypes.png")
        if vae.config.latent == 2:
            figure = representation_figure(vae, tests.values, corners)
            save_figure(figure, folder / "figure_1_representation.png")
    sessions, fitted_on = (play(vae, data, "largest_variance", draws) for data in (tests, validation))
    # The session whose area is the median of all.
    chosen = int(np.argsort(area(sessions.rmse))[len(tests) // 2])
    predictions, upcoming = [], []
    for step in _SHOWN_STEPS:
        observed = np.ones((1, len(vae.names)), bool)
        observed[:, vae.measurable] = False
        observed[0, sessions.orders[chosen, :step]] = True
        predictions.append(vae.predict(tests.values[chosen : chosen + 1], observed, draws))
        upcoming.append(int(sessions.orders[chosen, step]))
    full = vae.predict(tests.values[chosen : chosen + 1], np.ones((1, len(vae.names)), bool), draws)
    reference = (tests.values if tests.truth is None else tests.truth)[chosen]
    figure = session_figure(vae, predictions, reference, full, upcoming)
    save_figure(figure, folder / "figure_2_session.png")
    save_figure(information_figure({"largest variance": sessions.rmse}), folder / "figure_3_information.png")
    rules = {name: fit_stopping(fitted_on, features) for name, features in _RULES.items()}
    predicted = {name: rule.predict(features_of(sessions)) for name, rule in rules.items()}
    figure = predictor_figure(sessions, predicted["ridge with uncertainty"])
    save_figure(figure, folder / "figure_4_predictors.png")
    oracle = stopping_index(sessions.rmse, _THRESHOLD_DB)
    stops = {name: stopping_index(values, _THRESHOLD_DB) for name, values in predicted.items()}
    save_figure(stopping_figure(stops, oracle), folder / "figure_5_stopping.png")
    return folder


_RULES: dict[str, tuple[str, ...]] = {
    "number alone": ("measurements",),
    "ridge with uncertainty": ("measurements", "acquisition", "partial_elbo"),
}
