"""Speech synthesized on this machine: nothing is downloaded, and all of sepkit can be tried in minutes.

What it is: sentences of random words, spoken by espeak-ng's voice variants in eight accents of English, at varying
pitch and rate. A speaker is a voice variant. 16 variants are kept for test and 8 for dev. Variants that sound alike are
in the same split.
Size: 2.4 hours and 140 MB by default, made in about two minutes on two cores.
License: the recordings are made on your machine by espeak-ng (GPL-3, a separate program); the word list is ours (MIT).
Traps: each synthetic voice has one vocal tract, and there is no room. Scores show that the commands work, not how well
a model separates real speech. Another version of espeak-ng makes other samples.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from sepkit.choices import check_bounds
from sepkit.corpora._mixtures import MixtureStyle, draw_mixtures, summary
from sepkit.corpora._recordings import SPLITS, Recording, Utterance, check_provenance, examine
from sepkit.corpora.options import MiniOptions
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, write_manifest
from sepkit.data.tts import Synthesizer, Voice, find_synthesizer, trim_silence
from sepkit.errors import Bounds, UserError

# Variants that share their formants (linda and belinda, the ivens, m7 and m8 ...) stand in the same split.
VOICES: dict[str, dict[str, str]] = {
    "train": {
        "F": "Andrea aunty belinda linda f1 f2 steph steph2 steph3",
        "M": "Andy Denis Diogo Gene Gene2 Henrique Hugo Jacky Lee Mario Michael Nguyen RicishayMax RicishayMax2 adam "
        "benjamin edward edward2 grandpa iven iven3 john klatt klatt2 klatt3 klatt4 m1 m2 m4 m7 m8 marcelo max michel "
        "miguel norbert pablo pedro quincy rob robert robosoft robosoft2 robosoft3 robosoft6 robosoft8",
    },
    "dev": {"F": "Annie f4", "M": "boris david gustave antonio m6 paul"},
    "test": {"F": "Alicia anika f3 f5 grandma", "M": "Alex Marco Mike announcer croak ed m3 m5 sandro travis victor"},
}
"""Split -> sex -> names of espeak-ng's voice variants."""

WORDS = Path(__file__).with_name("words.txt").read_text(encoding="ascii").split()
"""Words of the sentences: common English ones, chosen for sepkit."""

ACCENTS = ("en", "en-us", "en-us-nyc", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029")

_PITCHES = (30, 70)
_WORDS_PER_MINUTE = (140, 190)
# Sentences last this much longer than the crops of dev and test.
_SPARE_SECONDS = 1.0


@dataclass(frozen=True)
class _Sentence:
    split: str
    sex: str
    voice: Voice
    text: str
    path: Path


def prepare_mini(options: MiniOptions) -> Path:
    """Write the manifests, with the synthetic recordings in `wav/` below them; return their folder.

    Mixtures are described, not written, as in `sepkit.corpora.folder`. In every second mixture of test all speakers
    have the same sex. Recordings that exist are kept: the same command continues where it stopped.
    """
    out, sample_rate, seed = Path(options.out), options.sample_rate, options.seed
    check_bounds(options)
    voices = {
        split: {name: sex for sex, names in by_sex.items() for name in names.split()}
        for split, by_sex in VOICES.items()
    }
    if options.train_voices is not None:
        # A part of train's voices is taken from women and men in turn.
        names = list(voices["train"])
        Bounds(ge=1, le=len(names)).check("--train-voices", options.train_voices)
        women = [name for name in names if voices["train"][name] == "F"][: options.train_voices // 2]
        men = [name for name in names if voices["train"][name] == "M"][: options.train_voices - len(women)]
        voices["train"] = {name: voices["train"][name] for name in [*women, *men]}
    most = min(len(names) for names in voices.values())
    Bounds(ge=1, le=most, note=", the voices of the smallest split").check("--speakers", options.speakers)
    counts = {"train": options.train_sentences, "dev": options.heldout_sentences, "test": options.heldout_sentences}
    sentence_seconds = options.segment_seconds + _SPARE_SECONDS
    check_provenance(
        out / "mini.json", {"seed": seed, "sample_rate": sample_rate, "sentence_seconds": sentence_seconds}
    )
    sentences = [
        _sentence(out, split, sex, variant, index, sentence_seconds, seed)
        for split in SPLITS
        for variant, sex in voices[split].items()
        for index in range(counts[split])
    ]
    _speak_all(sentences, sample_rate, out)

    utterances, unusable = examine([Recording(s.path, s.voice.variant, s.split, s.sex) for s in sentences], sample_rate)
    if unusable:
        raise UserError(f"{next(iter(unusable.values()))} ({len(unusable)} such files; remove them and run again)")
    style = MixtureStyle(out, sample_rate, "mini", options.speakers, gain_range_db=options.gain_range_db)
    for split in SPLITS:
        members = [utterance for utterance in utterances if utterance.recording.split == split]
        segment_samples = None if split == "train" else round(options.segment_seconds * sample_rate)
        entries = _mix(split, members, getattr(options, f"{split}_mixtures"), style, segment_samples, seed)
        write_manifest(out / f"{split}.jsonl", entries)
        print(f"{split}.jsonl: {summary(entries)}")
    return out


def _sentence(out: Path, split: str, sex: str, variant: str, index: int, seconds: float, seed: int) -> _Sentence:
    generator = np.random.default_rng([seed, *variant.encode(), index])
    voice = Voice(
        variant,
        accent=ACCENTS[generator.integers(len(ACCENTS))],
        pitch=int(generator.integers(*_PITCHES, endpoint=True)),
        words_per_minute=int(generator.integers(*_WORDS_PER_MINUTE, endpoint=True)),
    )
    num_words = max(3, round(seconds * voice.words_per_minute / 60))
    text = " ".join(WORDS[i] for i in generator.choice(len(WORDS), size=num_words))
    return _Sentence(split, sex, voice, text, out / "wav" / variant / f"{variant}-{index:03d}.wav")


def _speak_all(sentences: Sequence[_Sentence], sample_rate: int, out: Path) -> None:
    from tqdm import tqdm

    missing = [sentence for sentence in sentences if not sentence.path.is_file()]
    if not missing:
        return
    synthesizer = find_synthesizer()
    check_provenance(out / "mini.json", {"espeak_ng": synthesizer.version})
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        # The work is done in espeak-ng's processes; threads wait for them.
        spoken = pool.map(lambda sentence: _speak(synthesizer, sentence, sample_rate), missing)
        for _ in tqdm(spoken, total=len(missing), desc="speaking", unit="sentence", disable=None):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _speak(synthesizer: Synthesizer, sentence: _Sentence, sample_rate: int) -> None:
    waveform, native_rate = synthesizer.speak(sentence.text, sentence.voice)
    waveform = audio.resample(trim_silence(waveform, native_rate), native_rate, sample_rate)
    peak = float(np.abs(waveform).max(initial=0.0))
    if peak == 0:
        raise RuntimeError(f"espeak-ng made silence of {asdict(sentence.voice)}")
    audio.write(sentence.path, waveform * min(1.0, 0.9 / peak), sample_rate, subtype="PCM_16")


def _mix(
    split: str, members: Sequence[Utterance], count: int, style: MixtureStyle, segment_samples: int | None, seed: int
) -> list[MixtureEntry]:
    style = replace(style, segment_samples=segment_samples)
    long_enough = [utterance for utterance in members if utterance.num_samples >= (segment_samples or 1)]
    if len({utterance.speaker for utterance in long_enough}) < style.speakers:
        raise UserError(f"{split}: too few voices have a sentence as long as a segment; ask for more sentences of each")

    def accept(chosen: Sequence[Utterance], number: int) -> bool:
        one_sex = len({utterance.recording.sex for utterance in chosen}) == 1
        return split != "test" or style.speakers == 1 or one_sex == (number % 2 == 0)

    return draw_mixtures(long_enough, count, style, np.random.default_rng([seed, SPLITS.index(split)]), accept=accept)
