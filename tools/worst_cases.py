"""Test what a model says of recordings that go wrong: how many speak, and how well they are apart.

    python -m tools.worst_cases --speech SPEECH/test --noise NOISE/test [--model MODEL] [--out DIR] [--write]

SPEECH/test has a folder for each speaker, with 60 s or more of some of them; NOISE/test has recordings of noise. Two
tables are printed and written to DIR: what is counted in recordings whose number of speakers is known, and predicted
beside true SI-SDR where separation fails. With --write the tables and the figure of docs/explanation/failures.md are
replaced. It takes about five minutes of one core. Thresholds are chosen on other speakers (`--speech SPEECH/dev`).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from sepkit.data import audio
from sepkit.data.reverberation import RoomBank, early_and_late, reverberate
from sepkit.data.tts import Voice, find_synthesizer, trim_silence
from sepkit.errors import UserError
from sepkit.files import write_json, write_text
from sepkit.inference.calibration import in_turns, overlapping
from sepkit.inference.loading import load_model
from sepkit.inference.runners.base import ModelOutput, Runner, pairwise_si_sdr_db
from sepkit.inference.separator import Separator
from sepkit.matching import linear_sum_assignment

PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "failures.md"
FIGURE = PAGE.parent.parent / "images" / "predicted_failures.png"
SECONDS, PAUSE_SECONDS, LEVEL = 5.0, 0.15, 0.05
_LANGUAGES = ("de", "fr", "es", "it", "pl", "tr", "cmn", "hi", "ru", "sw")
_VARIANTS = ("m1", "f2", "m3", "f4", "m7", "f5")


class Voices:
    """Speech of every speaker of a folder, at one level, its utterances joined by short pauses."""

    def __init__(self, folder: Path, sample_rate: int) -> None:
        self.rate, self._paths, self._speech = sample_rate, {}, {}
        for speaker in sorted(path for path in folder.iterdir() if path.is_dir()):
            if files := sorted(path for path in speaker.rglob("*") if path.suffix in (".flac", ".wav", ".ogg")):
                self._paths[speaker.name] = files
        if len(self._paths) < 4:
            raise UserError(f"--speech {folder}: found {len(self._paths)} folders of speakers, expected 4 or more")

    def of(self, speaker: str) -> np.ndarray:
        """Return all speech of a speaker, (T,)."""
        if speaker not in self._speech:
            parts = [audio.read(path, sample_rate=self.rate) for path in self._paths[speaker]]
            pause = np.zeros(round(PAUSE_SECONDS * self.rate), np.float32)
            self._speech[speaker] = np.concatenate([x for part in parts for x in (at_level(part), pause)])
        return self._speech[speaker]

    def with_seconds(self, seconds: float) -> list[str]:
        """Return the speakers with at least so much speech."""
        return [name for name in self._paths if len(self.of(name)) >= seconds * self.rate]

    def pairs(self, seconds: float, count: int, generator: np.random.Generator) -> list[tuple[str, ...]]:
        """Return up to `count` pairs of speakers with at least so much speech each."""
        found = list(itertools.combinations(self.with_seconds(seconds), 2))
        order = generator.permutation(len(found))[:count]
        return [found[place] for place in order]


def at_level(waveform: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """Return a waveform at a root mean square level."""
    return (waveform * (level / max(float(np.sqrt(np.mean(np.square(waveform)))), 1e-9))).astype(np.float32)


# ------------------------------------------------------------------------------------------------------- who is counted


@dataclass(frozen=True)
class Counted:
    """Recordings of one kind, and the number of speakers in each."""

    name: str
    speakers: int
    recordings: Callable[[], Iterator[np.ndarray]]


def counted_kinds(voices: Voices, noise: Sequence[Path], count: int) -> list[Counted]:
    """Return all kinds of recordings whose number of speakers is known."""
    rate, drawn = voices.rate, np.random.default_rng

    def singles(seconds: float) -> Iterator[np.ndarray]:
        for name in voices.with_seconds(seconds)[:count]:
            yield voices.of(name)[: round(seconds * rate)]

    def overlaps(share: float) -> Iterator[np.ndarray]:
        length = round(10 / (2 - share) * rate)
        for pair in voices.pairs(10 / (2 - share), count, drawn(1)):
            yield overlapping(*(voices.of(name)[:length] for name in pair), share)

    def three() -> Iterator[np.ndarray]:
        generator, names = drawn(5), voices.with_seconds(10)
        for _ in range(count):
            chosen = generator.choice(names, 3, replace=False)
            yield np.sum([voices.of(name)[: 10 * rate] for name in chosen], axis=0)

    def turns(turn: float, seconds: float) -> Iterator[np.ndarray]:
        for pair in voices.pairs(seconds / 2, count, drawn(2)):
            yield in_turns([voices.of(name)[: round(seconds / 2 * rate)] for name in pair], round(turn * rate))

    def conversations(seconds: float) -> Iterator[np.ndarray]:
        for number, pair in enumerate(voices.pairs(seconds / 2, count // 2, drawn(3))):
            turn = round((3, 5, 8)[number % 3] * rate)
            yield in_turns([voices.of(name)[: round(seconds / 2 * rate)] for name in pair], turn)

    kinds = [Counted(f"one speaker, {s} s", 1, lambda s=s: singles(s)) for s in (10, 28, 45, 90)]
    shares = (1, 0.5, 0.25, 0)
    kinds += [Counted(f"two speakers, {100 * s:.0f} % overlap, 10 s", 2, lambda s=s: overlaps(s)) for s in shares]
    spans = ((3, 10), (5, 15), (8, 28))
    kinds += [Counted(f"two in turns of {t} s, {s} s", 2, lambda t=t, s=s: turns(t, s)) for t, s in spans]
    kinds += [Counted(f"two in turns of 3, 5 or 8 s, {s} s", 2, lambda s=s: conversations(s)) for s in (45, 90)]
    kinds.append(Counted("three speakers, 100 % overlap, 10 s", 3, three))
    return [*kinds, Counted("noise, 5 s", 0, lambda: without_speech(noise, rate, count)), *no_voice(rate)]


def without_speech(noise: Sequence[Path], rate: int, count: int) -> Iterator[np.ndarray]:
    """Yield recordings of noise."""
    for path in noise[:count]:
        yield at_level(audio.read(path, sample_rate=rate))


def no_voice(rate: int) -> list[Counted]:
    """Return recordings in which nobody speaks: hum, melodies, silence."""
    time = np.arange(8 * rate) / rate

    def hums() -> Iterator[np.ndarray]:
        for base in (50, 60, 100, 120, 440, 1000):
            wave = sum(np.sin(2 * np.pi * base * k * time) / k**2 for k in (1, 2, 3, 5))
            yield at_level(cast(np.ndarray, wave) + 0.003 * np.random.default_rng(base).standard_normal(len(time)))

    return [
        Counted("hum or a tone, 8 s", 0, hums),
        Counted("a melody, 8 s", 0, lambda: (melody(k, rate, 8.0) for k in range(6))),
        Counted("silence, 5 s", 0, lambda: iter([np.zeros(5 * rate, np.float32)])),
    ]


def melody(number: int, rate: int, seconds: float) -> np.ndarray:
    """Return notes of an instrument with a few harmonics, drawn from a scale."""
    generator = np.random.default_rng(100 + number)
    scale = (110 if number % 2 else 262) * 2 ** (np.array([0, 2, 4, 5, 7, 9, 11, 12]) / 12)
    strengths, notes, total = generator.uniform(0.1, 1, 5) / np.arange(1, 6), [], 0
    while total < seconds * rate:
        time = np.arange(round(generator.uniform(0.15, 0.6) * rate)) / rate
        pitch = scale[generator.integers(len(scale))]
        wave = sum(s * np.sin(2 * np.pi * pitch * (k + 1) * time) for k, s in enumerate(strengths))
        notes.append(wave * np.exp(-3 * time) * np.minimum(1, time / 0.01))
        total += len(time)
    return at_level(np.concatenate(notes)[: round(seconds * rate)])


def count_table(separator: Separator, kinds: Sequence[Counted]) -> dict[str, dict[str, Any]]:
    """Return what is said of the recordings of each kind: 0, 1, 2, 2 or more (2+), or no number."""
    found = {}
    for kind in kinds:
        results = [separator.separate(wave, separator.sample_rate) for wave in kind.recordings()]
        said = Counter(
            "none" if one.speakers is None else f"{one.speakers}{'+' if one.or_more else ''}" for one in results
        )
        found[kind.name] = {
            "speakers": kind.speakers,
            "recordings": len(results),
            "said": dict(said),
            "out_of_domain": sum(bool(one.out_of_domain) for one in results),
        }
    return found


def count_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table of counts in Markdown."""
    lines = ["| recording | N | right | no number given | wrong | out of domain |", "|---|---|---|---|---|---|"]
    for name, row in found.items():
        none, known = row["said"].get("none", 0), row["speakers"]
        least = [f"{number}+" for number in range(known + 1)]
        right = sum(number for said, number in row["said"].items() if said in (str(known), *least))
        wrong = row["recordings"] - right - none
        lines.append(f"| {name} | {row['recordings']} | {right} | {none} | {wrong} | {row['out_of_domain']} |")
    return lines


# ---------------------------------------------------------------------------------------------------------- predictions


class Failing:
    """A runner whose separation fails in a known way, in every view alike.

    Args:
        change: from mixture (T,) and estimates (n, T) to other estimates.
    """

    def __init__(self, runner: Runner, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        self._runner, self._change = runner, change

    def __getattr__(self, name: str) -> Any:
        """Return what the runner has."""
        return getattr(self._runner, name)

    def run(self, mixtures: np.ndarray, *arguments: Any, **options: Any) -> ModelOutput:
        """Return the runner's output with changed estimates."""
        output = self._runner.run(mixtures, *arguments, **options)
        changed = [self._change(mixture, own) for mixture, own in zip(mixtures, output.estimates, strict=True)]
        output.estimates = np.stack(changed).astype(np.float32)
        return output


def both_the_mixture(mixture: np.ndarray, estimates: np.ndarray) -> np.ndarray:
    """Return estimates that are nearly the mixture."""
    return 0.5 * mixture + 0.02 * estimates


def one_empty(mixture: np.ndarray, estimates: np.ndarray) -> np.ndarray:
    """Return the mixture as one estimate, and next to nothing as the other."""
    return np.stack([mixture, 1e-3 * estimates[1]])


def swapped_midway(mixture: np.ndarray, estimates: np.ndarray) -> np.ndarray:
    """Return estimates that change speakers in the middle."""
    middle = len(mixture) // 2
    return np.concatenate([estimates[:, :middle], estimates[::-1, middle:]], axis=1)


def halves(mixture: np.ndarray, estimates: np.ndarray) -> np.ndarray:
    """Return each second of the mixture in one estimate or the other."""
    first = np.arange(len(mixture)) // 4000 % 2 == 0
    return np.stack([mixture * first, mixture * ~first]) + 0.01 * estimates


@dataclass
class Example:
    """What is predicted of the estimates (k,) of one recording, their interval (k, 2), and what is true, dB.

    Args:
        improved: SI-SDR improvement, mean over estimates.
    """

    predicted: np.ndarray
    interval: np.ndarray
    true: np.ndarray
    improved: float
    out_of_domain: bool
    flagged: bool


@dataclass(frozen=True)
class Case:
    """Recordings of one kind with their sources, and how their separation fails beside that."""

    name: str
    mixtures: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]
    change: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None


def cases(voices: Voices, noise: Sequence[Path], count: int) -> list[Case]:
    """Return all kinds of recordings that predictions are tested on."""
    rate = voices.rate
    length = round(SECONDS * rate)

    def mixed(speakers: int = 2) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        generator, names = np.random.default_rng(4), voices.with_seconds(SECONDS)
        for _ in range(count):
            chosen = generator.choice(names, speakers, replace=False)
            gains = 10 ** (generator.uniform(-2.5, 2.5, speakers) / 20)
            sources = np.stack([g * voices.of(name)[:length] for g, name in zip(gains, chosen, strict=True)])
            yield sources.sum(0), sources

    def noisy(snr_db: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number, (mixture, sources) in enumerate(mixed()):
            wave = audio.read(noise[number % len(noise)], sample_rate=rate)
            level = np.sqrt(np.mean(np.square(mixture))) * 10 ** (-snr_db / 20)
            yield mixture + at_level(np.resize(wave, length), level), sources

    def far() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        with tempfile.TemporaryDirectory() as folder:
            bank = RoomBank(folder, rate, 2, seed=7)
            for number, (_, sources) in enumerate(mixed()):
                responses = bank.impulse_responses(number)
                both = [early_and_late(response, rate) for response in responses]
                early, late = (
                    np.stack([reverberate(s, parts[place]) for s, parts in zip(sources, both, strict=True)])
                    for place in (0, 1)
                )
                yield (early + late).sum(0).astype(np.float32), early

    def music() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number in range(count):
            sources = np.stack([melody(2 * number + k, rate, SECONDS) for k in range(2)])
            yield sources.sum(0), sources

    def languages() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        synthesizer = find_synthesizer()
        text = "1984 73 256 18 945 67 312 40 8000 11 590 27"
        for number in range(count):
            sources = []
            for k in range(2):
                variant = _VARIANTS[(number + k * (1 + number % 5)) % len(_VARIANTS)]
                voice = Voice(variant, _LANGUAGES[(number // 3 + k) % len(_LANGUAGES)], 35 + 7 * ((number + k) % 5))
                wave, own_rate = synthesizer.speak(text, voice)
                speech = trim_silence(wave, own_rate)
                sources.append(at_level(np.resize(audio.resample(speech, own_rate, rate), length)))
            yield np.sum(sources, 0), np.stack(sources)

    return [
        Case("two speakers", mixed),
        Case("10 dB of noise", lambda: noisy(10)),
        Case("0 dB of noise", lambda: noisy(0)),
        Case("a far microphone", far),
        Case("three speakers", lambda: mixed(3)),
        Case("other languages, synthesized", languages),
        Case("music: two melodies", music),
        Case("estimates: both the mixture", mixed, both_the_mixture),
        Case("estimates: one empty", mixed, one_empty),
        Case("estimates: halves in turn", mixed, halves),
        Case("estimates: swapped midway", mixed, swapped_midway),
    ]


def measure(separator: Separator, case: Case) -> list[Example]:
    """Return what is predicted of the recordings of a case, and what is true; the number of outputs is given."""
    if separator.quality is None:
        raise UserError("--model: it predicts nothing; run `sepkit calibrate`")
    if case.change is not None:
        runner = Failing(getattr(separator.runner, "_runner", separator.runner), case.change)
        separator = Separator(cast(Runner, runner), quality=separator.quality, views=separator.quality.views)
    examples = []
    for mixture, sources in case.mixtures():
        found = separator.separate(mixture.astype(np.float32), separator.sample_rate, speakers=separator.hypotheses)
        table = pairwise_si_sdr_db(found.estimates, sources)
        rows, columns = linear_sum_assignment(table, maximize=True)
        true, before = table[rows, columns], pairwise_si_sdr_db(mixture[None], sources)[0][columns]
        told = np.asarray(found.predicted_si_sdr_db)[rows], np.asarray(found.predicted_interval_db)[rows]
        improved = float((true - before).mean())
        examples.append(Example(*told, true, improved, bool(found.out_of_domain), bool(found.likely_not_separated)))
    return examples


def prediction_row(examples: Sequence[Example]) -> dict[str, Any]:
    """Return what a row of the table of predictions tells of a case."""
    true, predicted = (np.concatenate([getattr(one, name) for one in examples]) for name in ("true", "predicted"))
    low, high = np.concatenate([one.interval for one in examples]).T
    out = np.concatenate([np.full(len(one.true), one.out_of_domain) for one in examples])
    return {
        "recordings": len(examples),
        "true_db": float(true.mean()),
        "predicted_db": float(np.nanmean(predicted)),
        "error_db": float(np.sqrt(np.nanmean(np.square(true - predicted)))),
        "inside": float(np.mean((low <= true) & (true <= high))),
        "out_of_domain": float(out.mean()),
        "misled": float(np.mean((true < low) & ~out)),
        "flagged": float(np.mean([one.flagged for one in examples])),
        "worse": float(np.mean([one.improved < 0 for one in examples])),
    }


def prediction_lines(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table of predictions in Markdown."""
    heads = "recording | N | true, dB | predicted, dB | error, dB | in the interval | out of domain | "
    heads += "below it and not said | flagged | worse than the mixture"
    lines = [f"| {heads} |", "|" + "---|" * (heads.count("|") + 1)]
    for name, row in rows.items():
        shares = [f"{100 * row[key]:.0f} %" for key in ("inside", "out_of_domain", "misled", "flagged", "worse")]
        levels = [f"{row[key]:.1f}" for key in ("true_db", "predicted_db", "error_db")]
        lines.append(f"| {' | '.join([name, str(row['recordings']), *levels, *shares])} |")
    return lines


def draw(found: dict[str, list[Example]], path: Path) -> None:
    """Draw predicted against true SI-SDR, one panel for each case; hollow points are out of domain."""
    from matplotlib.figure import Figure

    columns = 4
    figure = Figure(figsize=(10, 2.6 * -(-len(found) // columns)), layout="constrained")
    for place, (name, examples) in enumerate(found.items()):
        axes = figure.add_subplot(-(-len(found) // columns), columns, place + 1)
        axes.plot([-12, 20], [-12, 20], color="0.7", linewidth=1)
        for out in (False, True):
            chosen = [one for one in examples if one.out_of_domain == out]
            color = "none" if out else "C0"
            points = [[value for one in chosen for value in getattr(one, key)] for key in ("true", "predicted")]
            axes.scatter(*points, s=14, facecolors=color, edgecolors="C0", linewidths=0.8)
        axes.set(title=name, xlim=(-12, 20), ylim=(-12, 20))
        axes.title.set_fontsize(9)
    figure.supxlabel("true SI-SDR, dB")
    figure.supylabel("predicted SI-SDR, dB")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def between_marks(page: str, mark: str, lines: Sequence[str]) -> str:
    """Return a page with other lines between `<!-- MARK -->` and `<!-- end -->`."""
    begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
    before, after = page.split(begin)
    return before + begin + "\n".join(lines) + "\n" + end + after.split(end, 1)[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0, or 2 for a mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speech", type=Path, required=True, help="a folder for each speaker")
    parser.add_argument("--noise", type=Path, required=True, help="recordings of noise")
    parser.add_argument("--model", help="default: the one that ships")
    parser.add_argument("--count", type=int, default=30, help="recordings of each kind, at most")
    parser.add_argument("--out", type=Path, default=Path("build/worst_cases"), help="folder")
    parser.add_argument("--part", choices=["counts", "predictions"], help="default: both")
    parser.add_argument("--write", action="store_true", help="replace tables and figure of the documentation")
    given = parser.parse_args(arguments)
    try:
        separator = load_model(given.model, "cpu")
        voices = Voices(given.speech, separator.sample_rate)
        noise = sorted(path for path in given.noise.rglob("*") if path.suffix in (".flac", ".wav", ".ogg"))
        tables = {}
        if given.part != "predictions":
            counts = count_table(separator, counted_kinds(voices, noise, given.count))
            write_json(given.out / "counts.json", counts)
            tables["counts"] = count_lines(counts)
        if given.part != "counts":
            found = {case.name: measure(separator, case) for case in cases(voices, noise, given.count)}
            rows = {name: prediction_row(examples) for name, examples in found.items()}
            write_json(given.out / "predictions.json", rows)
            draw(found, FIGURE if given.write else given.out / FIGURE.name)
            tables["predictions"] = prediction_lines(rows)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        print("\n".join([*lines, ""]))
        page = between_marks(page, name, lines) if given.write else page
    if given.write:
        write_text(PAGE, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
