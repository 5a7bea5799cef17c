"""Options of a separator as plain data: those of `sepkit separate` and of `Separator`."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from sepkit.choices import check_bounds, convert, did_you_mean, field_types
from sepkit.errors import Bounds, UserError, shown
from sepkit.limits import DEPTH_STEPS
from sepkit.numbers import Finite, Natural, Positive

Levels = Literal["mixture", "model"]
Precision = Literal["float32", "bfloat16"]
RunnerKind = Literal["auto", "graph", "torch"]

Subtype = Literal["FLOAT", "PCM_16"]

SampleFormat = Literal["s16le", "f32le"]
"""Little-endian samples: 16-bit integers, or floats with full scale 1."""

Speakers = Literal["auto"] | int | None
"""Which hypotheses to keep: None all; "auto" those whose score says that they are speakers; N the N best scored."""


LinkSpeakers = Literal["auto"] | int
"""How many speakers to link estimates to: their number, or "auto": it is found."""


SpeakerFeatures = Literal["waveform", "fbank", "mel"]
"""What the speaker encoder of another toolkit hears: samples; log energies of 80 mel bands as Kaldi's, of WeSpeaker and
3D-Speaker; or powers of 40 mel bands, of Resemblyzer."""

WHOLE_SECONDS, CHUNK_SECONDS, OVERLAP_SECONDS = 30.0, 10.0, 5.0
"""Where neither the user nor the model says how long a recording may be to go in one piece, and how chunks are cut."""

MOST_VIEWS = 5
_NAME_BYTES = 64


@dataclass(frozen=True)
class SeparatorOptions:
    """Options of a `Separator`.

    Args:
        levels: level of the estimates. mixture: each at its level in the mixture; model: as the model outputs it,
            unless swapped speakers were put back (default: the model's own setting, else mixture)
        mixture_consistency: make the estimates add up to the recording, sample by sample
        score_threshold: log-odds above which a hypothesis counts as a speaker (default: the model's own, which counts
            speakers best on the dev mixtures)
        whole_seconds: longest recording that is separated as a whole; longer ones are separated in chunks; inf: never
            in chunks (default: the model's own, else 30)
        chunk_seconds: length of the chunks of a long recording; bounds memory (default: the model's own, else 10)
        overlap_seconds: overlap of neighboring chunks, at most half of a chunk (default: the model's own, else 5 or
            half of a chunk)
        precision: number format; bfloat16 is faster for dual_path_rnn and conv_tasnet on processors that support it,
            and slightly less exact
        depth_steps: steps of a continuous-depth model; the cost is proportional to them (default: the model's own)
        runner: runtime of the model: its graph, or torch; auto: the graph if there is one and no other option needs
            torch
        views: number of views of a recording, 1 to 5, that estimates are averaged over: as it is, played 5 % slower,
            5 % faster, and so on; with two or more, and in long recordings, speakers whom the estimates swap are put
            back; with fewer than in calibration, the model predicts no SI-SDR (default: as many as in calibration,
            else 1)

    Raises:
        UserError: a word that is none of these, or numbers out of range.
    """

    # levels "mixture": g_i = <x, s_i> / <s_i, s_i>, so that no estimate is stronger than the mixture and polarity is
    # right; models trained with a scale-invariant cost have no level of their own.
    levels: Levels | None = None
    mixture_consistency: bool = False
    score_threshold: Finite | None = None
    whole_seconds: Annotated[float, Bounds(ge=0)] | None = None
    chunk_seconds: Annotated[float, Bounds(ge=0.1, lt=math.inf)] | None = None
    overlap_seconds: Positive | None = None
    # bfloat16: estimates differ by about -57 dB with sigmoid masks and -40 dB with relu masks (asteroid's sizes).
    precision: Precision = "float32"
    depth_steps: Annotated[int, Bounds(ge=1, le=DEPTH_STEPS)] | None = None
    runner: RunnerKind = "auto"
    views: Annotated[int, Bounds(ge=1, le=MOST_VIEWS, note="; 2 gains most for its time")] | None = None

    @property
    def torch_only(self) -> list[str]:
        """Command-line options given here that a graph does not have."""
        given = {"--precision": self.precision != "float32", "--depth-steps": self.depth_steps is not None}
        return [name for name, is_given in given.items() if is_given]

    def __post_init__(self) -> None:
        for name, kind in field_types(type(self)).items():
            convert(kind, getattr(self, name), name)
        check_bounds(self)
        chunk = CHUNK_SECONDS if self.chunk_seconds is None else self.chunk_seconds
        if self.overlap_seconds is not None and not 0 < self.overlap_seconds <= chunk / 2:
            raise UserError(
                f"overlap_seconds: found {self.overlap_seconds}, expected more than 0 and at most {chunk / 2}, half of "
                "chunk_seconds"
            )


@dataclass(frozen=True)
class OutputOptions:
    """Selection and output of each recording.

    Args:
        channel: channel to separate, from 0 (default: the mean of all, or the loudest if they cancel in it)
        speakers: number of speakers: auto (estimated by the model; may be 0) or a number (the estimates with the best
            scores; passed to a model that counts) (default: auto for a model that counts, else one estimate per
            hypothesis)
        format: file format of the estimates
        subtype: sample format of the estimates; those that would clip as PCM_16 are written as FLOAT wav (default:
            FLOAT for wav of a recording of more than 16 bits per sample, else PCM_16)
        rttm: also write who spoke when, as DIR/<relative path>.rttm
        link_speakers: number of speakers, or auto, if there are more than the model has outputs: the turns of all
            estimates are linked; _s1 ... _sN are then speakers, silent outside their turns; speakers whom the
            estimates swap are not put back before
        speaker_encoder: speaker encoder for --link-speakers: a folder that `sepkit train` wrote, FILE.onnx of any
            toolkit, or one that ships with sepkit: campplus_8k or meetings_8k (default: campplus_8k)
        speaker_features: input of FILE.onnx: waveform, fbank (WeSpeaker, 3D-Speaker) or mel (Resemblyzer) (default: the
            one in its metadata)
        enroll: names of speakers, each with a recording of that speaker alone, for --link-speakers (auto if left out):
            their tracks are DIR/<relative path>_NAME.wav, and the JSON file lists who is absent
        only: enrolled speaker whose track is written; no other track is
        verify: compare earlier results by the SHA-256 of recordings and estimates, not only by their sizes

    Raises:
        UserError: flac of floats.
    """

    channel: Natural | None = None
    speakers: Speakers = None
    format: Literal["wav", "flac"] = "wav"
    subtype: Subtype | None = None
    rttm: bool = False
    link_speakers: LinkSpeakers | None = None
    speaker_encoder: str | None = None
    speaker_features: SpeakerFeatures | None = None
    enroll: list[str] | None = None
    only: str | None = None
    verify: bool = False

    def __post_init__(self) -> None:
        if self.link_speakers is not None and self.link_speakers != "auto" and self.link_speakers < 1:
            raise UserError(f"link_speakers: found {self.link_speakers}, expected auto or at least 1")
        if self.enroll is not None and self.link_speakers is None and self.speakers is None:
            object.__setattr__(self, "link_speakers", "auto")
        for name in ("speaker_encoder", "speaker_features", "enroll"):
            if self.link_speakers is None and getattr(self, name) is not None:
                raise UserError(f"{name}: needs link_speakers=auto, or link_speakers=N for N speakers")
        if self.link_speakers is not None and self.speakers is not None:
            raise UserError(
                f"link_speakers: does not go with speakers={self.speakers}, which chooses among the model's outputs; "
                "leave out one of them"
            )
        names = read_names(self.enroll or ())
        if self.only is not None and self.only not in names:
            if not names:
                raise UserError(f"only: found {self.only}, which is not enrolled; add enroll {self.only}=FILE")
            known = ", ".join(names)
            raise UserError(f"only: found {self.only}{did_you_mean(self.only, names)}, expected one of {known}")
        if self.format == "flac" and self.subtype == "FLOAT":
            raise UserError("subtype: found FLOAT, which flac does not support; use subtype=PCM_16 or format=wav")


def read_names(words: Sequence[str]) -> dict[str, Path]:
    """Return name -> recording of words NAME=FILE.

    Names become parts of file names and fields of RTTM, and tracks without a name are called s1, s2 ...

    Raises:
        UserError: another form, a name that cannot be used, or two that cannot be told apart.
    """
    named: dict[str, Path] = {}
    for word in words:
        name, mark, path = word.partition("=")
        if not (name and mark and path):
            raise UserError(f"enroll: found {shown(word)}, expected NAME=FILE")
        if not re.fullmatch(r"\w(?:[\w.-]*\w)?", name) or len(name.encode()) > _NAME_BYTES:
            better = re.sub(r"\W+", "_", name).strip("_")[:20]
            raise UserError(
                f"enroll: found the name {shown(name)}, expected letters, digits, _, . and - between them, "
                f"at most {_NAME_BYTES} bytes" + (f", such as {better}" if better else "")
            )
        if re.search(r"(?:^|_)s\d+$", name, re.IGNORECASE):
            raise UserError(f"enroll: found the name {shown(name)}, but speakers without a name are called s1, s2 ...")
        for other in named:
            # Files that differ in case alone are one file on some systems; talk_a_b is b of talk_a, or a_b of talk.
            one, two = name.casefold(), other.casefold()
            if one == two or one.endswith(f"_{two}") or two.endswith(f"_{one}"):
                raise UserError(
                    f"enroll: found the names {other} and {name}, expected names that differ by more than case, and "
                    "none that ends in _ and another one"
                )
        named[name] = Path(path)
    return named
