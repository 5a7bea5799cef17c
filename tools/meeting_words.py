"""Word errors in meetings: of the recording, of separated tracks and of true tracks, by pocketsphinx.

    pip install pocketsphinx 'sepkit[meeting]'
    python -m tools.meeting_words --out DIR --speech FOLDER --texts FILE

Speakers of FOLDER/test/SPEAKER read the lines of --texts ("NAME TEXT", NAME.flac being a recording). `sepkit prepare
conversation` makes meetings of them, `sepkit separate --link-speakers` makes tracks, and `sepkit evaluate --meeting`
measures all three. The recognizer, whose model its wheel brings, is told these lines. With --transcribe FILE this is
the recognizer, as --asr-command takes it.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sepkit.data import audio
from sepkit.data.activity import ActivityMeter
from sepkit.files import read_json
from sepkit.reporting.tables import markdown_table
from tools.sepkit_command import run

RATE = 16000
SPEAKERS, MINUTES, MAX_OVERLAP, SEEDS = 3, 2, 2, (0, 1)
# Around each turn, for the recognizer.
_MARGIN_SECONDS = 0.3


def transcribe(path: Path, texts: Path) -> Iterator[str]:
    """Yield a line '[START --> END] WORDS' for each turn of a track; the recognizer is told the lines of `texts`."""
    from pocketsphinx import Decoder

    phrases = sorted({line.lower().split(maxsplit=1)[1] for line in texts.read_text().splitlines()})
    decoder = Decoder(samprate=RATE, loglevel="FATAL", lm=None)
    known = [one for one in phrases if all(decoder.lookup_word(word) for word in one.split())]
    decoder.add_jsgf_string("words", f"#JSGF V1.0; grammar words; public <line> = ({'|'.join(known)})+;")
    decoder.activate_search("words")
    wave = audio.read(path, sample_rate=RATE)
    meter = ActivityMeter(1, RATE)
    meter.add(wave[None])
    for start, length in meter.segments()[0]:
        part = wave[max(0, round((start - _MARGIN_SECONDS) * RATE)) : round((start + length + _MARGIN_SECONDS) * RATE)]
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


def measure(out: Path, speech: Path, texts: Path, seed: int) -> dict[str, dict[str, float]]:
    """Return the summary of each kind of tracks of one meeting."""
    meeting = out / f"meeting_{seed}"
    words = ["prepare", "conversation", "--speech", speech, "--texts", texts, "--out", meeting]
    words += ["--speakers", SPEAKERS, "--minutes", MINUTES, "--max-overlap", MAX_OVERLAP, "--seed", seed]
    run(*words, "--sample-rate", RATE)
    for how in ("auto", SPEAKERS):
        tracks = meeting / f"linked_{how}"
        run("separate", meeting / "mixture.flac", "--link-speakers", how, "--no-predict", "--out", tracks)
    kinds = {
        "recording": [meeting / "mixture.flac"],
        "separated, number found": sorted((meeting / "linked_auto").glob("*.wav")),
        "separated, number given": sorted((meeting / f"linked_{SPEAKERS}").glob("*.wav")),
        "true": sorted(meeting.glob("s*.flac")),
    }
    command = f"{sys.executable} -m tools.meeting_words --transcribe {{wav}} --texts {shlex.quote(str(texts))}"
    found = {}
    for number, (kind, tracks) in enumerate(kinds.items()):
        words = ["evaluate", "--meeting", "--reference", meeting / "conversation.seglst.json", "--hypothesis", *tracks]
        run(*words, "--asr-command", command, "--out", meeting / f"scores_{number}")
        found[kind] = read_json(meeting / f"scores_{number}/summary.json")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or transcribe one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transcribe", type=Path, metavar="FILE", help="print what pocketsphinx hears in a wav file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--speech", type=Path, help="read speech")
    parser.add_argument("--texts", type=Path, required=True, help="what is read in it")
    given = parser.parse_args(arguments)
    if given.transcribe is not None:
        print("\n".join(transcribe(given.transcribe, given.texts)))
        return
    if given.out is None or given.speech is None:
        parser.error("expected --out and --speech")
    meetings = [measure(given.out, given.speech, given.texts, seed) for seed in SEEDS]
    rows = []
    for kind in meetings[0]:
        n_words = [found[kind]["n_words"] for found in meetings]
        rates = {rate: [found[kind][rate] for found in meetings] for rate in ("cpwer", "tcpwer", "der")}
        rows.append([kind, *(f"{100 * np.average(own, weights=n_words):.1f} %" for own in rates.values())])
    print(markdown_table(["tracks", "cpWER", "tcpWER", "DER"], rows), end="")
    print(f"{len(meetings)} meetings, {sum(found['true']['n_words'] for found in meetings)} words")


if __name__ == "__main__":
    main()
