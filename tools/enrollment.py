"""How often enrolled speakers are found in meetings, and absent ones named: by thresholds of likeness.

    python -m tools.enrollment --speech speech_mini/wav8k --split dev --out DIR
    python -m tools.enrollment --speech speech_mini/wav8k --cohort cohort.npy

The first part of each speaker's recordings is the enrollment, of 3 to 10 s; the rest speaks in meetings. In each
meeting all who speak are enrolled, and eight others who do not; then each of these alone. A speaker who is said to be
absent is missed, and one who gets the track of another is confused. A false alarm is an absent speaker who gets a
track. Undecided are those whose enrollment is too short. Choose a threshold on dev, and report it on test.

With --cohort: write the cohort of the shipped encoder, the centers of k-means of its training speakers.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sepkit.data import audio
from sepkit.data.activity import ActivityMeter
from sepkit.errors import UserError
from sepkit.evaluation.diarization import Turns, read_rttm
from sepkit.inference.diarization.clustering import spherical_k_means, unit_rows
from sepkit.inference.diarization.encoders import load_encoder
from sepkit.inference.diarization.enrollment import Enrolled, enroll, name_speakers
from sepkit.inference.diarization.linking import link
from sepkit.inference.loading import load_model
from sepkit.inference.long.recordings import FileRecording
from sepkit.reporting.tables import markdown_table
from tools.sepkit_command import run

RATE = 8000
SECONDS = 3, 5, 10
SPEAKERS, SEEDS, THRESHOLDS = (2, 3, 4, 6, 8), (1, 2), (0.08, 0.11, 0.14, 0.17, 0.2)
_MINUTES, _ABSENT = 3, 8
# What is left for meetings at least, the shortest of enrollments to speak of, and the longest piece of a turn.
_REST_SECONDS, _SHORTEST_SECONDS, _PIECE_SECONDS, _STEP_SECONDS = 4.0, 3.2, 6.0, 0.02
# Voices of the cohort, and the pieces of each speaker that they are made of.
_VOICES, _VOICE_PIECES, _VOICE_PIECE_SAMPLES = 100, 8, 12000


@dataclass(frozen=True)
class Trial:
    """Enrolled speakers and the tracks of a meeting.

    Args:
        enrolled: those who speak, and others.
        embeddings: (tracks, D).
        owners: who really speaks most in each track.
        present: names of those of them who speak.
        cohort: voices of the encoder's cohort.
    """

    enrolled: list[Enrolled]
    embeddings: np.ndarray
    owners: list[str]
    present: set[str]
    cohort: np.ndarray | None = None

    def counts(self, threshold: float) -> np.ndarray:
        """Return how many are missed, undecided, confused and present, then falsely named, undecided and absent."""
        counts = np.zeros(7, int)
        for one in name_speakers(self.enrolled, self.embeddings, threshold, self.cohort):
            if one.enrolled.name not in self.present:
                counts[4:] += one.speaker is not None, one.too_short, 1
            else:
                confused = one.speaker is not None and self.owners[one.speaker] != one.enrolled.name
                counts[:4] += one.speaker is None and not one.too_short, one.too_short, confused, 1
        return counts


def divide(speech: Path, split: str, out: Path) -> None:
    """Write OUT/CORPUS/enroll3 ... and speech/SPLIT/SPEAKER; speechocean762's speakers are called 9...."""
    for folder in sorted((speech / split).iterdir()):
        wave = np.concatenate([audio.read(path, sample_rate=RATE) for path in sorted(folder.rglob("*.flac"))])
        seconds = min(max(SECONDS), len(wave) / RATE - _REST_SECONDS)
        if seconds < _SHORTEST_SECONDS:
            continue
        to = out / ("speechocean762" if folder.name.startswith("9") and len(folder.name) == 5 else "librispeech")
        for most in SECONDS:
            part = wave[: round(min(most, seconds) * RATE)]
            audio.write(to / f"enroll{most}" / f"{folder.name}.wav", part, RATE, subtype="PCM_16")
        rest = wave[round(seconds * RATE) :]
        for number, part in enumerate(np.array_split(rest, max(1, round(len(rest) / RATE / _PIECE_SECONDS)))):
            audio.write(to / "speech" / split / folder.name / f"{number}.wav", part, RATE, subtype="PCM_16")


def meet(corpus: Path, split: str, speakers: int, seed: int) -> Path:
    """Return the folder of a meeting with its estimates in separated/."""
    out = corpus / f"meeting_{speakers}_{seed}"
    words = ["--speech", corpus / "speech", "--split", split, "--minutes", _MINUTES, "--seed", f"{seed}{speakers}"]
    run("prepare", "conversation", *words, "--speakers", speakers, "--max-overlap", 2, "--out", out)
    # Each output holds one speaker after another.
    found = load_model(predict=False, views=1).separate_recording(FileRecording(out / "mixture.flac"), undo_swaps=False)
    with closing(found.estimates) as estimates:
        replace(found, estimates=estimates.in_memory()).save(out / "separated", "mixture")
    return out


def trials(corpus: Path, meeting: Path) -> Iterator[tuple[str, int, Trial]]:
    """Yield how speakers were counted, the seconds of enrollments, and the trial, of a meeting."""
    encoder = load_encoder()
    truth = next(iter(read_rttm(meeting / "conversation.rttm").values()))
    estimates = np.stack([audio.read(path) for path in sorted((meeting / "separated").glob("*.wav"))])
    others = [path.stem for path in sorted((corpus / "enroll10").iterdir()) if path.stem not in truth]
    names = [*sorted(truth), *np.random.default_rng(len(truth)).permutation(others)[:_ABSENT].tolist()]
    whole = estimates.sum(0, keepdims=True)
    for how in ("auto", len(truth)):
        linked = link(lambda: iter([estimates]), len(estimates), RATE, encoder, how, lambda: iter([whole]))  # type: ignore[arg-type]
        owners = [_owner(track, truth) for track in np.concatenate(list(linked.blocks()), axis=1)]
        for seconds in SECONDS:
            known = []
            for name in names:
                try:
                    known += enroll({name: corpus / f"enroll{seconds}" / f"{name}.wav"}, encoder)
                except UserError as refused:
                    print(f"left out: {refused}", file=sys.stderr)
            found = Trial(known, linked.embeddings, owners, set(truth), encoder.cohort)
            number = "auto" if how == "auto" else "given"
            yield number, seconds, found
            for one in known:
                yield f"{number}, one enrolled", seconds, replace(found, enrolled=[one], present={one.name} & {*truth})


def _owner(track: np.ndarray, truth: Turns) -> str:
    """Return who really speaks most where a track is heard."""
    meter = ActivityMeter(1, RATE)
    meter.add(track[None])
    heard = _steps(meter.segments()[0], len(track))
    return max(truth, key=lambda name: (heard & _steps(truth[name], len(track))).sum())


def _steps(turns: Sequence[tuple[float, float]], samples: int) -> np.ndarray:
    active = np.zeros(int(samples / RATE / _STEP_SECONDS) + 1, bool)
    for start, length in turns:
        active[int(start / _STEP_SECONDS) : int((start + length) / _STEP_SECONDS)] = True
    return active


def write_cohort(speakers: Sequence[Path], to: Path) -> None:
    """Write the cohort of the shipped encoder: centers of the mean embeddings of speakers, who have a folder each."""
    encoder, means = load_encoder(), []
    for folder in speakers:
        wave = np.concatenate([audio.read(path, sample_rate=RATE) for path in sorted(folder.rglob("*.flac"))])
        pieces = wave[: len(wave) // _VOICE_PIECE_SAMPLES * _VOICE_PIECE_SAMPLES].reshape(-1, _VOICE_PIECE_SAMPLES)
        means.append(encoder.embed(pieces[:_VOICE_PIECES]).mean(0))
    np.save(to, spherical_k_means(unit_rows(np.array(means)), _VOICES).centers.astype(np.float16))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument("--out", type=Path, help="folder of the meetings")
    parser.add_argument("--cohort", type=Path, help="file of the cohort, which is made of the split train")
    given = parser.parse_args(arguments)
    if given.cohort:
        write_cohort(sorted(path for path in (given.speech / "train").iterdir() if path.is_dir()), given.cohort)
        return
    divide(given.speech, given.split, given.out)
    found: dict[tuple[str, int, str], list[Trial]] = {}
    for corpus in sorted(given.out.iterdir()):
        for speakers in SPEAKERS:
            for seed in SEEDS:
                for how, seconds, trial in trials(corpus, meet(corpus, given.split, speakers, seed)):
                    found.setdefault((how, seconds, corpus.name), []).append(trial)
    rows = []
    for (how, seconds, corpus_name), own in found.items():
        for threshold in THRESHOLDS:
            sums = np.sum([trial.counts(threshold) for trial in own], axis=0).tolist()
            missed, unsure, confused, present, false, undecided, absent = sums
            numbers = [f"{missed} of {present}", str(unsure), str(confused), f"{false} of {absent}", str(undecided)]
            rows.append([how, f"{seconds} s", corpus_name, f"{threshold:g}", *numbers])
    header = ["number", "enrolled from", "corpus", "threshold", "missed", "undecided", "confused"]
    header += ["false alarms", "undecided"]
    print(markdown_table(header, rows, words=(0, 1, 2)), end="")


if __name__ == "__main__":
    main()
