"""How good a model is on recordings as people have them: telephones, rooms, noise, turns, one speaker alone.

    python -m tools.conditions table --speech SPEECH/test --noise NOISE/test [--model MODEL ...] [--out DIR] [--write]
    python -m tools.conditions manifest --speech SPEECH/dev --noise NOISE/dev --out DIR

SPEECH has a folder for each speaker and NOISE recordings of noise, both at the models' rate or above. `table` measures
models (those that ship, trained ones, public ones by name) on the same recordings of each condition, prints a table for
each model and writes DIR/conditions.json; the same command again continues. With --write it replaces the tables of
docs/explanation/failures.md. With --dev it also measures, for each condition, a predictor that was fitted on the other
conditions of that manifest. `manifest` writes the recordings and DIR/dev.jsonl, which `sepkit calibrate` takes; give
it speakers that the table does not have.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.config import DynamicMixingConfig
from sepkit.data import audio
from sepkit.data.channels import RandomChannel, band_gains, band_limit, encode_and_decode
from sepkit.data.reverberation import early_and_late, reverberate, simulate_room
from sepkit.errors import UserError
from sepkit.evaluation.metrics import si_sdr_db
from sepkit.files import read_json, write_json, write_text
from sepkit.inference.calibration import calibrate
from sepkit.inference.loading import load_model
from sepkit.inference.separator import Separator
from sepkit.matching import linear_sum_assignment
from sepkit.models.published.shipped import DEFAULT_CAUSAL_MODEL, DEFAULT_MODEL

PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "failures.md"
_PAUSE_SECONDS, _LEVEL, _GAIN_DB = 0.15, 0.05, 2.5
_BRICK_WALL, _GENTLE, _CLEAN_DB = 200.0, 4.0, 30.0


@dataclass(frozen=True)
class Condition:
    """One kind of recording.

    Args:
        name: Row of the table.
        speakers: Number of speakers.
        seconds: Length of a recording, seconds; None: that of the call.
        in_turns: Whether speakers take turns of 2 to 5 s; they overlap fully otherwise.
        band: Cutoffs of the high-pass and the low-pass filter, Hz, and order of both; None: no band limit.
        codec: Name in `sepkit.data.channels.CODECS`; None: no codec.
        snr_db: Ratio of speech to noise, dB; None: no noise.
        reverberation_seconds: T60 of the room; None: no room.
        random_channel: Whether each recording passes through another random channel, as in training.
    """

    name: str
    speakers: int = 2
    seconds: float | None = None
    in_turns: bool = False
    band: tuple[float, float, float] | None = None
    codec: str | None = None
    snr_db: float | None = None
    reverberation_seconds: float | None = None
    random_channel: bool = False


_TELEPHONE = (300.0, 3400.0, _BRICK_WALL)
CONDITIONS = (
    Condition("clean"),
    Condition("telephone band, steep filters", band=_TELEPHONE),
    Condition("telephone band, gentle filters", band=(300.0, 3400.0, _GENTLE)),
    Condition("telephone band, mu-law", band=_TELEPHONE, codec="mu_law"),
    Condition("telephone band, GSM", band=_TELEPHONE, codec="gsm"),
    Condition("high-pass filter at 200 Hz", band=(200.0, 4000.0, _BRICK_WALL)),
    Condition("random channel", random_channel=True),
    *(Condition(f"noise at {snr} dB", snr_db=snr) for snr in (10, 5, 0)),
    *(Condition(f"room, T60 {t60} s", reverberation_seconds=t60) for t60 in (0.25, 0.5)),
    Condition("room, T60 0.4 s, and noise at 10 dB", snr_db=10, reverberation_seconds=0.4),
    Condition("interview in turns", in_turns=True, seconds=20.0),
    Condition("telephone call in turns", in_turns=True, seconds=20.0, band=_TELEPHONE, codec="mu_law"),
    Condition("three speakers", speakers=3),
    Condition("one speaker", speakers=1, seconds=10.0),
    Condition("one speaker, telephone", speakers=1, seconds=10.0, band=_TELEPHONE, codec="mu_law"),
    Condition("one speaker, room, T60 0.4 s", speakers=1, seconds=10.0, reverberation_seconds=0.4),
    *(Condition(f"one speaker, noise at {snr} dB", speakers=1, seconds=10.0, snr_db=snr) for snr in (10, 5, 0)),
    Condition("noise alone", speakers=0, snr_db=0),
)


@dataclass
class Recorded:
    """A recording (T,), its targets (m, T) and their speakers."""

    mixture: np.ndarray
    sources: np.ndarray
    speakers: list[str]


class Voices:
    """Speech of every speaker of a folder, at one level, its utterances joined by short pauses.

    Args:
        folder: Folder with a folder for each speaker.
        sample_rate: Rate to read at, Hz.
    """

    def __init__(self, folder: Path, sample_rate: int) -> None:
        self.rate, self._paths, self._speech = sample_rate, {}, {}
        for speaker in sorted(path for path in folder.iterdir() if path.is_dir()):
            if files := recordings_in(speaker):
                self._paths[speaker.name] = files
        if len(self._paths) < 4:
            raise UserError(f"--speech {folder}: found {len(self._paths)} folders of speakers, expected 4 or more")

    def of(self, speaker: str) -> np.ndarray:
        """Return all speech of a speaker, (T,)."""
        if speaker not in self._speech:
            parts = [audio.read(path, sample_rate=self.rate) for path in self._paths[speaker]]
            pause = np.zeros(round(_PAUSE_SECONDS * self.rate), np.float32)
            self._speech[speaker] = np.concatenate([x for part in parts for x in (at_level(part), pause)])
        return self._speech[speaker]

    def with_seconds(self, seconds: float) -> list[str]:
        """Return the speakers with at least so much speech."""
        return [name for name in self._paths if len(self.of(name)) >= seconds * self.rate]


def recordings_in(folder: Path) -> list[Path]:
    """Return the recordings in a folder and below, in order."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".flac", ".wav", ".ogg"))


def at_level(waveform: np.ndarray, level: float = _LEVEL) -> np.ndarray:
    """Return a waveform at a root mean square level, float32."""
    return (waveform * (level / max(float(np.sqrt(np.mean(np.square(waveform)))), 1e-9))).astype(np.float32)


def record(
    condition: Condition, voices: Voices, noise: Sequence[Path], count: int, seconds: float, seed: int
) -> Iterator[Recorded]:
    """Yield recordings of a condition; the speech of all conditions of one number of speakers is the same.

    Args:
        condition: What the recordings went through.
        voices: Speech.
        noise: Recordings of noise.
        count: Number of recordings.
        seconds: Their length, unless the condition has its own.
        seed: Seed of everything that is drawn.
    """
    length = round((condition.seconds or seconds) * voices.rate)
    # Turns share the time among the speakers.
    needed = length / voices.rate / (condition.speakers if condition.in_turns else 1)
    names = voices.with_seconds(needed)
    if len(names) < max(1, condition.speakers):
        raise UserError(f"--speech: found {len(names)} speakers with {needed:.0f} s, expected {condition.speakers}")
    for number in range(count):
        draw = np.random.default_rng([seed, condition.speakers, number])
        chosen = [names[place] for place in draw.choice(len(names), condition.speakers, replace=False)]
        sources = _speech(condition, [voices.of(name) for name in chosen], length, voices.rate, draw)
        background = np.resize(audio.read(noise[int(draw.integers(len(noise)))], sample_rate=voices.rate), length)
        yield Recorded(*_transmitted(condition, sources, background, voices.rate, draw), chosen)


def _speech(
    condition: Condition, speech: list[np.ndarray], length: int, rate: int, draw: np.random.Generator
) -> np.ndarray:
    """Return sources (m, T): crops of the speech of each speaker, or turns of 2 to 5 s."""
    sources = np.zeros((len(speech), length), np.float32)
    gains = 10 ** (draw.uniform(-_GAIN_DB, _GAIN_DB, len(speech)) / 20)
    if not condition.in_turns:
        for row, whole, gain in zip(sources, speech, gains, strict=True):
            start = int(draw.integers(len(whole) - length + 1))
            row[:] = gain * at_level(whole[start : start + length])
        return sources
    start, taken = 0, [0] * len(speech)
    for speaker in itertools.cycle(range(len(speech))):
        stop = min(length, start + int(draw.uniform(2, 5) * rate))
        turn = speech[speaker][taken[speaker] : taken[speaker] + stop - start]
        sources[speaker, start : start + len(turn)] = gains[speaker] * turn
        taken[speaker] += len(turn)
        start = stop
        if start == length:
            return sources
    return sources


def _transmitted(
    condition: Condition, sources: np.ndarray, background: np.ndarray, rate: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mixture (T,) and its targets (m, T) after the room, the noise, the channel and the codec."""
    late = np.zeros_like(background)
    if condition.reverberation_seconds is not None:
        responses = simulate_room(draw, rate, len(sources), condition.reverberation_seconds, talker_meters=(1.0, 2.0))
        parts = [early_and_late(response, rate) for response in responses]
        late = np.sum([reverberate(own, part[1]) for own, part in zip(sources, parts, strict=True)], axis=0)
        sources = np.stack([reverberate(own, part[0]) for own, part in zip(sources, parts, strict=True)])
    mixture = sources.sum(0) + late
    if condition.snr_db is not None:
        level = float(np.sqrt(np.mean(np.square(mixture)))) or _LEVEL
        mixture = mixture + at_level(background, level * 10 ** (-condition.snr_db / 20))
    signals = np.concatenate([sources, mixture[None]])
    channel = None
    if condition.random_channel:
        channel = RandomChannel(replace(DynamicMixingConfig(), codec_probability=0.5), rate, draw)
        signals = channel.limit_band(signals)
    elif condition.band is not None:
        low, high, order = condition.band
        signals = band_limit(signals, lambda size: band_gains(size, rate, (low, order), (high, order)))
    sources, mixture = signals[:-1], signals[-1]
    if channel is not None:
        mixture = channel.distort(mixture)
    elif condition.codec is not None:
        peak = 1.05 * float(np.abs(mixture).max())
        mixture = encode_and_decode(mixture / peak, rate, condition.codec) * np.float32(peak)
    return mixture.astype(np.float32), sources.astype(np.float32)


# -------------------------------------------------------------------------------------------------------- measurements


def measure(separator: Separator, recorded: Recorded) -> dict[str, Any]:
    """Return what a model makes of one recording: SI-SDR and its improvement, dB, the prediction and the count."""
    found = separator.separate(recorded.mixture, separator.sample_rate)
    row: dict[str, Any] = {
        "said": found.speakers,
        "at_least": found.selection.count_is_lower_bound,
        "out": found.out_of_domain,
    }
    if not len(recorded.sources):
        return row
    several = len(recorded.sources) > 1
    # A wrong count must not hide how good the estimates are.
    again = several and found.speakers == 1 and separator.counts_speakers
    kept = (
        separator.separate(recorded.mixture, separator.sample_rate, speakers=separator.hypotheses) if again else found
    )
    table = np.array([[float(si_sdr_db(e, s)) for s in recorded.sources] for e in np.asarray(kept.estimates)])
    rows, columns = linear_sum_assignment(table, maximize=True)
    before = np.array([float(si_sdr_db(recorded.mixture, source)) for source in recorded.sources])[columns]
    row |= {"si_sdr_db": table[rows, columns].tolist(), "before_db": before.tolist(), "first_db": float(table[0, 0])}
    if kept.predicted_si_sdr_db is not None and several:
        row["predicted_db"] = np.asarray(kept.predicted_si_sdr_db, np.float64)[rows].tolist()
        row["interval_db"] = np.asarray(kept.predicted_interval_db, np.float64)[rows].tolist()
    return row


def summarize(condition: Condition, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a row of the table: means over recordings, shares, and how often the count is right."""
    known = condition.speakers
    right = [
        row["said"] == known or (row["said"] is not None and row["at_least"] and row["said"] <= known) for row in rows
    ]
    none = sum(row["said"] is None for row in rows)
    found: dict[str, Any] = {
        "recordings": len(rows),
        "right": sum(right),
        "not_given": none,
        "wrong": len(rows) - none - sum(right),
    }
    if not known:
        return found
    before = np.array([np.mean(row["before_db"]) for row in rows])
    gains = np.array([np.mean(row["si_sdr_db"]) for row in rows]) - before
    # A single clean voice is its own mixture: nothing can be gained.
    if before.mean() < _CLEAN_DB:
        found |= {"si_sdri_db": float(gains.mean()), "worse": float(np.mean(gains < 0))}
    told = [row for row in rows if "predicted_db" in row and np.isfinite(row["predicted_db"]).all() and not row["out"]]
    found["predicted"] = len(told)
    if told:
        true, predicted, interval = (
            np.concatenate([row[key] for row in told]) for key in ("si_sdr_db", "predicted_db", "interval_db")
        )
        found["inside"] = float(np.mean((interval[:, 0] <= true) & (true <= interval[:, 1])))
        found["error_db"] = float(np.mean(predicted - true))
    return found


def table_of(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table of a model in Markdown, without counts if the model never counts."""
    counts_speakers = any(row["right"] + row["wrong"] for row in found.values())
    both = any("left_out" in row for row in found.values())
    heads = [
        "condition",
        "SI-SDRi, dB",
        "worse than the mixture",
        "in the 90 % interval (n)",
        "predicted too high by, dB",
    ]
    heads += counts_speakers * ["count right / not given / wrong"]
    heads += both * ["left out: in the interval", "left out: too high by, dB"]
    heads += both * counts_speakers * ["left out: count"]
    lines = ["".join(f"| {head} " for head in heads) + "|", len(heads) * "|---" + "|"]
    for name, row in found.items():
        if not counts_speakers and "si_sdri_db" not in row:
            continue
        other = row.get("left_out", {})
        cells = [name, f"{row['si_sdri_db']:.1f}" if "si_sdri_db" in row else ""]
        cells += [f"{100 * row['worse']:.0f} %" if "worse" in row else "", *_reliability(row, counts_speakers)]
        cells += _reliability(other, counts_speakers) if both else []
        lines.append("".join(f"| {cell} " for cell in cells) + "|")
    return lines


def _reliability(row: dict[str, Any], counts_speakers: bool) -> list[str]:
    """Return the cells of the prediction, and of the count if the model counts."""
    cells = (
        [f"{100 * row['inside']:.0f} % ({row['predicted']})", f"{row['error_db']:+.1f}"]
        if "inside" in row
        else ["", ""]
    )
    return cells + counts_speakers * [f"{row['right']} / {row['not_given']} / {row['wrong']}" if row else ""]


def measure_all(model: str, options: argparse.Namespace, noise: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return condition -> row of the table for a model; continue what DIR/conditions.json has."""
    path = options.out / "conditions.json"
    done = read_json(path, "delete it") if path.is_file() else {}
    separator = load_model(model, "cpu")
    voices = Voices(options.speech, separator.sample_rate)
    key = f"{separator.fingerprint()} {options.speech} {options.count} {options.seconds} {options.seed} {options.dev}"
    own = done.setdefault(model, {"of": key, "rows": {}})
    if own["of"] != key:
        own = done[model] = {"of": key, "rows": {}}
    calibration = calibrate(separator, options.dev) if options.dev and separator.quality else None
    for condition in options.conditions:
        if condition.name not in own["rows"] and condition.speakers <= max(3, separator.hypotheses):
            made = list(record(condition, voices, noise, options.count, options.seconds, options.seed))
            row = summarize(condition, [measure(separator, recorded) for recorded in made])
            if calibration:
                others = calibration.fit(
                    condition.name, *(condition.speakers > separator.hypotheses) * ["more speakers"]
                )
                blind = Separator(separator.runner, quality=others, views=1)
                row["left_out"] = summarize(condition, [measure(blind, recorded) for recorded in made])
            own["rows"][condition.name] = row
            write_json(path, done)
    return own["rows"]


def write_manifest(options: argparse.Namespace, noise: Sequence[Path]) -> Path:
    """Write recordings of all conditions and their manifest, which `sepkit calibrate` takes; return its path."""
    rate = options.sample_rate
    voices, lines = Voices(options.speech, rate), []
    for kind, condition in enumerate(options.conditions):
        for number, recorded in enumerate(
            record(condition, voices, noise, options.count, options.seconds, options.seed)
        ):
            name = f"{kind:02d}_{number:03d}"
            audio.write(options.out / f"{name}.wav", recorded.mixture, rate)
            sources = []
            for place, (source, speaker) in enumerate(zip(recorded.sources, recorded.speakers, strict=True)):
                audio.write(options.out / f"{name}_s{place + 1}.wav", source, rate)
                sources.append({"path": f"{name}_s{place + 1}.wav", "speaker": speaker})
            size = {"sample_rate": rate, "num_samples": len(recorded.mixture), "mode": "min"}
            lines.append({"id": name, **size, "mixture": f"{name}.wav", "corpus": condition.name, "sources": sources})
    return write_text(options.out / "dev.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def between_marks(page: str, mark: str, lines: Sequence[str]) -> str:
    """Return a page with other lines between `<!-- MARK -->` and `<!-- end -->`."""
    begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
    before, after = page.split(begin)
    return before + begin + "\n".join(lines) + "\n" + end + after.split(end, 1)[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0, or 2 for a mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["table", "manifest"], help="what to make")
    parser.add_argument("--speech", type=Path, required=True, help="folder with a folder for each speaker")
    parser.add_argument("--noise", type=Path, required=True, help="folder of recordings of noise")
    parser.add_argument("--model", nargs="+", default=[DEFAULT_MODEL, DEFAULT_CAUSAL_MODEL], help="default: what ships")
    parser.add_argument("--dev", type=Path, help="manifest of conditions that predictors are fitted on, one left out")
    parser.add_argument("--count", type=int, default=100, help="recordings of each condition")
    parser.add_argument("--seconds", type=float, default=6.0, help="their length")
    parser.add_argument("--seed", type=int, default=7, help="of all that is drawn")
    parser.add_argument("--sample-rate", type=int, default=8000, help="of a manifest, Hz")
    parser.add_argument("--only", nargs="+", default=[], help="conditions whose names begin like one of these")
    parser.add_argument("--out", type=Path, default=Path("build/conditions"), help="folder")
    parser.add_argument("--write", action="store_true", help="replace the tables of the documentation")
    given = parser.parse_args(arguments)
    given.conditions = [one for one in CONDITIONS if not given.only or one.name.startswith(tuple(given.only))]
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        noise = recordings_in(given.noise)
        if given.part == "manifest":
            print(write_manifest(given, noise))
            return 0
        page = PAGE.read_text(encoding="utf-8")
        for model in given.model:
            lines = table_of(measure_all(model, given, noise))
            print("\n".join([model, "", *lines, ""]))
            page = between_marks(page, model, lines) if given.write else page
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.write:
        write_text(PAGE, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
