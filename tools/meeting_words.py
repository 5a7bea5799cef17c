"""Word errors in meetings: of the recording, of separated tracks and of true tracks, by pocketsphinx.

    pip install pocketsphinx 'sepkit[meeting,tts]'
    python -m tools.meeting_words --out DIR
    python -m tools.meeting_words --out DIR --speech FOLDER --texts FILE

espeak-ng speaks lines of words from a short list, `sepkit prepare conversation` makes meetings of them, `sepkit
separate --link-speakers` makes tracks, and `sepkit evaluate --meeting` measures all three. The recognizer, whose model
its wheel brings, is told the list. With --speech, speakers of FOLDER/test/SPEAKER read the lines of --texts ("NAME
TEXT", NAME.flac being a recording), and the recognizer is told these lines. With --transcribe FILE this is the
recognizer, as --asr-command takes it.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sepkit.cli.main import main as sepkit
from sepkit.data import audio
from sepkit.data.activity import ActivityMeter
from sepkit.data.tts import Voice, find_synthesizer, trim_silence
from sepkit.files import read_json, write_text

WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "red", "blue", "green", "white"),
    *("black", "yellow", "brown", "apple", "table", "window", "garden", "river", "doctor", "winter", "paper"),
)
VOICES = "f1", "f2", "f3", "m3", "m5", "sandro"
"""Of espeak-ng: those whose words pocketsphinx mostly knows when they speak alone."""

RATE = 16000
_LINES, _WORDS_PER_LINE, _WORDS_PER_MINUTE = 12, 8, 120
# Around each turn, for the recognizer.
_MARGIN_SECONDS = 0.3


def speak(folder: Path, seed: int = 0) -> Path:
    """Write FOLDER/test/VOICE/VOICE-N.wav and FOLDER/text, what is said in each; return the latter."""
    generator, synthesizer, lines = np.random.default_rng(seed), find_synthesizer(), []
    for name in VOICES:
        voice = Voice(name, words_per_minute=_WORDS_PER_MINUTE)
        for number in range(_LINES):
            text = " ".join(generator.choice(WORDS, _WORDS_PER_LINE))
            wave, rate = synthesizer.speak(text, voice)
            wave = audio.resample(trim_silence(wave, rate), rate, RATE)
            path = folder / "test" / name / f"{name}-{number:02d}.wav"
            audio.write(path, 0.7 * wave / np.abs(wave).max(), RATE, subtype="PCM_16")
            lines.append(f"{path.stem} {text}\n")
    return write_text(folder / "text", "".join(lines))


def phrases_of(texts: Path | None) -> list[str]:
    """Return what the recognizer is told: the lines that are read, or the words of espeak-ng's."""
    if texts is None:
        return list(WORDS)
    return sorted({line.split(maxsplit=1)[1] for line in texts.read_text().splitlines()})


def transcribe(path: Path, phrases: Sequence[str]) -> Iterator[str]:
    """Yield a line '[START --> END] WORDS' for each turn of a track."""
    from pocketsphinx import Decoder

    decoder = Decoder(samprate=RATE, loglevel="FATAL", lm=None)
    known = [one for one in phrases if all(decoder.lookup_word(word) for word in one.split())]
    decoder.add_jsgf_string("words", f"#JSGF V1.0; grammar words; public <line> = ({'|'.join(known)})+;")
    decoder.activate_search("words")
    wave = audio.read(path, sample_rate=RATE)
    meter = ActivityMeter(1, RATE)
    meter.add(wave[None])
    for start, length in meter.segments()[0]:
        first = max(0, round((start - _MARGIN_SECONDS) * RATE))
        part = wave[first : round((start + length + _MARGIN_SECONDS) * RATE)]
        # The recognizer expects speech at a usual level.
        loud = 0.7 / max(float(np.abs(part).max()), 1e-9)
        decoder.start_utt()
        decoder.process_raw((part * loud * 2**15).astype("<i2").tobytes(), full_utt=True)
        decoder.end_utt()
        found = decoder.hyp()
        if found is not None:
            # Other pronunciations are written word(2).
            said = re.sub(r"[(]\d+[)]", "", found.hypstr)
            yield f"[{start:.2f} --> {start + length:.2f}] {said}"


def measure(
    out: Path, speech: Path, texts: Path | None, speakers: int, minutes: float, seed: int, max_overlap: int
) -> dict[str, dict[str, float]]:
    """Return the summary of each kind of tracks of one meeting."""
    meeting = out / f"meeting_{seed}"
    words = ["prepare", "conversation", "--speech", speech, "--texts", texts or speech / "text", "--out", meeting]
    words += ["--speakers", speakers, "--minutes", minutes, "--max-overlap", max_overlap, "--seed", seed]
    run(*words, "--sample-rate", RATE)
    for how in ("auto", speakers):
        tracks = meeting / f"linked_{how}"
        run("separate", meeting / "mixture.flac", "--link-speakers", how, "--no-predict", "--out", tracks)
    kinds = {
        "recording": [meeting / "mixture.flac"],
        "separated, number found": sorted((meeting / "linked_auto").glob("*.wav")),
        "separated, number given": sorted((meeting / f"linked_{speakers}").glob("*.wav")),
        "true": sorted(meeting.glob("s*.flac")),
    }
    command = f"{sys.executable} -m tools.meeting_words --transcribe {{wav}}"
    if texts is not None:
        command += f" --texts {shlex.quote(str(texts))}"
    found = {}
    for number, (kind, tracks) in enumerate(kinds.items()):
        words = ["evaluate", "--meeting", "--reference", meeting / "conversation.seglst.json", "--hypothesis", *tracks]
        run(*words, "--asr-command", command, "--out", meeting / f"scores_{number}")
        found[kind] = read_json(meeting / f"scores_{number}/summary.json")
    return found


def run(*words: object) -> None:
    """Run a command of sepkit."""
    if code := sepkit([str(word) for word in words]):
        raise SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or transcribe one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transcribe", type=Path, metavar="FILE", help="print what pocketsphinx hears in a wav file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--speech", type=Path, help="read speech; default: espeak-ng speaks")
    parser.add_argument("--texts", type=Path, help="what is read in it")
    parser.add_argument("--speakers", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--max-overlap", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    given = parser.parse_args(arguments)
    if given.transcribe is not None:
        print("\n".join(transcribe(given.transcribe, phrases_of(given.texts))))
        return
    if given.out is None or (given.speech is None) != (given.texts is None):
        parser.error("expected --out, and --speech and --texts or neither")
    speech = given.speech or given.out / "speech"
    if given.speech is None and not (speech / "text").is_file():
        speak(speech)
    of_all = given.speakers, given.minutes
    meetings = [measure(given.out, speech, given.texts, *of_all, seed, given.max_overlap) for seed in given.seeds]
    print("| tracks | cpWER | tcpWER | DER |\n|---|---|---|---|")
    for kind in meetings[0]:
        n_words = np.array([found[kind]["n_words"] for found in meetings])
        rates = [
            100 * np.average([found[kind][name] for found in meetings], weights=n_words)
            for name in ("cpwer", "tcpwer", "der")
        ]
        print(f"| {kind} | " + " | ".join(f"{rate:.1f} %" for rate in rates) + " |")
    print(f"{len(meetings)} meetings, {sum(found['true']['n_words'] for found in meetings)} words")


if __name__ == "__main__":
    main()
