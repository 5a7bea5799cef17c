"""Train the network that detects active estimates: as many as there are speakers, the strongest ones.

activity.py features OUT --speech DIR --noise DIR --count N --minutes M [--first N] [--separator MODEL]
activity.py train OUT --minutes M [--seed N]

features: separate conversations of one to six training speakers (half with noise, a third on a telephone channel) with
a model of two outputs, and write OUT/*.pt. train: train on all of them, and write OUT/activity.onnx. Both commands
continue where they were stopped.
"""

from __future__ import annotations

import argparse
import math
import shutil
import time
from contextlib import closing
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import soundfile
import torch
from scipy.signal import fftconvolve, firwin
from torch import Tensor, nn
from torch.nn import functional

from sepkit.corpora._recordings import find_recordings
from sepkit.corpora.conversation import prepare_conversation
from sepkit.corpora.options import ConversationOptions
from sepkit.data import audio
from sepkit.data.activity import FRAME_SECONDS
from sepkit.errors import UserError
from sepkit.evaluation.diarization import read_rttm
from sepkit.inference.diarization.activity import ACTIVITY_GRAPH, BANDS, SAMPLE_RATE, log_mel
from sepkit.inference.loading import load_model
from sepkit.inference.long.recordings import FileRecording

FRAME = round(FRAME_SECONDS * SAMPLE_RATE)
CROP_FRAMES, BATCH_SIZE, LEARNING_RATE = 600, 16, 2e-3
# The strongest estimates are those of the most energy in this many frames on both sides.
REACH = 15
# Log powers less than the recording's mean minus this are raised to it; then, all are divided by 4.
FLOOR, SCALE = 14.0, 4.0
# Mean mel power of a waveform whose mean square is 1: 512 / 2 * sum(window ** 2) / BANDS. Triangles of bands sum to 1.
MEL_MEAN = 960.0


class ActivityNetwork(nn.Module):
    """Two bidirectional GRUs over frames of 40 ms; the second also takes the mean state of the other estimates."""

    def __init__(self, hidden: int = 96, channels: int = 128, dropout: float = 0.1) -> None:
        super().__init__()
        self.front = nn.Conv1d(3 * BANDS, channels, 5, stride=2, padding=2)
        self.first = nn.GRU(channels, hidden, batch_first=True, bidirectional=True)
        self.mix = nn.Linear(4 * hidden, channels)
        self.second = nn.GRU(channels, hidden, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * hidden, 2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, level: Tensor) -> Tensor:
        """Return logits (B, k, F).

        Args:
            features: Log mel powers of k estimates and of the recording, (B, k + 1, F, bands), F even.
            level: Log of the mean of the recording's mel powers, (B,).
        """
        level = level[:, None, None, None]
        features = ((features - level).exp() + math.exp(-FLOOR)).log() / SCALE
        own = features[:, :-1]
        # Sizes are computed from tensors, so that the graph takes any number of estimates.
        places = torch.ones_like(own[0, :, 0, 0]).cumsum(0)
        itself = (places[:, None] == places).float()[:, :, None, None]
        others = (own[:, None] - 1e9 * itself).amax(2).clamp(min=-FLOOR / SCALE)
        inputs = torch.cat([own, features[:, -1:].expand_as(own), others], -1)
        x = torch.relu(self.front(inputs.flatten(0, 1).transpose(1, 2))).transpose(1, 2)
        hidden = self.run(self.first, x)
        hidden = hidden.reshape(own.shape[0], own.shape[1], *hidden.shape[1:])
        rest = (hidden.sum(1, keepdim=True) - hidden) / (places[-1] - 1).clamp(min=1)
        x = torch.relu(self.mix(torch.cat([hidden, rest], -1))).flatten(0, 1)
        return self.output(self.dropout(self.run(self.second, x))).reshape(own.shape[:3])

    def run(self, layer: nn.GRU, x: Tensor) -> Tensor:
        """Return the states (B, F, 2 hidden) of a layer; x is (B, F, channels)."""
        start = torch.zeros_like(x[:, :1, :1]).transpose(0, 1).expand(2, -1, layer.hidden_size)
        return layer(self.dropout(x), start)[0]


def tilted(noise: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return noise with a smooth random spectrum, of deviation 1."""
    spectrum = np.fft.rfft(noise)
    places = np.linspace(0, 1, len(spectrum))
    gain = sum(generator.normal(0, 0.7) * np.cos(np.pi * k * places) for k in range(1, 5))
    shaped = np.fft.irfft(spectrum * np.exp(gain), len(noise))
    return shaped / shaped.std()


def disturbed(clean: np.ndarray, recordings: list[Path], generator: np.random.Generator) -> np.ndarray:
    """Return speech with noise (recorded, 40 %; colored, 10 %) and on a telephone channel (35 %), of peak 0.7."""
    samples, level, drawn = clean, clean.std(), generator.random()
    if drawn < 0.4:
        parts = [np.zeros(0)]
        while sum(map(len, parts)) < len(samples):
            part = audio.read(recordings[generator.integers(len(recordings))], sample_rate=SAMPLE_RATE)
            parts.append(part / (part.std() + 1e-9))
        noise = np.concatenate(parts)[: len(samples)]
        noise = noise if generator.random() < 0.5 else tilted(noise, generator)
        samples = samples + noise * level * 10 ** (-generator.uniform(3, 22) / 20)
    elif drawn < 0.5:
        spectrum = np.fft.rfft(generator.standard_normal(len(samples)))
        spectrum *= np.maximum(np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE), 30) ** -generator.uniform(0, 1.2)
        noise = np.fft.irfft(spectrum, len(samples))
        samples = samples + noise / noise.std() * level * 10 ** (-generator.uniform(3, 30) / 20)
    if generator.random() < 0.35:
        band = [generator.uniform(150, 400), generator.uniform(2800, 3600)]
        taps = firwin(int(generator.choice([101, 257, 513])), band, pass_zero=False, fs=SAMPLE_RATE)
        samples = fftconvolve(samples, taps, "same")
        if generator.random() < 0.6:
            pressed = samples / np.abs(samples).max() * generator.uniform(0.2, 0.8)
            pressed = np.round(np.sign(pressed) * np.log1p(255 * np.abs(pressed)) / np.log(256) * 127) / 127
            samples = np.sign(pressed) * (256 ** np.abs(pressed) - 1) / 255
    return samples / np.abs(samples).max() * 0.7


def strongest(estimates: np.ndarray, speaking: np.ndarray) -> np.ndarray:
    """Return which estimates are active, (k, F) bool: as many as there are speakers, of the most energy.

    Args:
        estimates: (k, T).
        speaking: Number of speakers in each frame, (F,).
    """
    frames = estimates.shape[1] // FRAME
    energies = np.square(estimates[:, : frames * FRAME].reshape(len(estimates), frames, FRAME)).sum(-1)
    windows = np.pad(energies, ((0, 0), (REACH, REACH)), "edge")
    near = np.lib.stride_tricks.sliding_window_view(windows, 2 * REACH + 1, axis=1).sum(-1)
    return (-near).argsort(0).argsort(0) < speaking[:frames]


def speakers_in(rttm: Path, frames: int) -> np.ndarray:
    """Return the number of speakers in each frame, (F,)."""
    count = np.zeros(frames, int)
    for turns in next(iter(read_rttm(rttm).values())).values():
        active = np.zeros(frames, bool)
        for start, length in turns:
            active[round(start / FRAME_SECONDS) : round((start + length) / FRAME_SECONDS)] = True
        count += active
    return count


def save(values: object, path: Path) -> None:
    """Write a file as a whole."""
    torch.save(values, path.with_suffix(".partial"))
    path.with_suffix(".partial").replace(path)


def write_features(args: argparse.Namespace) -> None:
    """Write log mel powers and which estimates are active, of conversations."""
    recordings = audio.find_audio_files(args.noise)
    model = load_model(args.separator, predict=False, views=1)
    for problem, found in (
        (f"--minutes {args.minutes}: expected more than 0.2, the length of a crop", args.minutes <= 0.2),
        (f"--separator {args.separator}: found {model.hypotheses} outputs, expected 2", model.hypotheses != 2),
    ):
        if found:
            raise UserError(problem)
    voices = [recording for recording in find_recordings(args.speech)[0] if recording.split in ("train", None)]
    known = len({recording.speaker for recording in voices})
    args.out.mkdir(parents=True, exist_ok=True)
    for number in range(args.first, args.first + args.count):
        path, folder = args.out / f"{number:05d}.pt", args.out / f"conversation_{number:05d}"
        if path.exists():
            continue
        generator = np.random.default_rng([7, number])
        speakers = min(int(generator.choice(6, p=[0.08, 0.3, 0.16, 0.16, 0.15, 0.15])) + 1, max(known, 1))
        overlap = None if speakers == 2 and generator.random() < 0.3 else min(speakers, 2)
        prepare_conversation(
            ConversationOptions(
                speech=args.speech, out=folder, split="train", minutes=args.minutes, speakers=speakers,
                max_overlap=None if speakers == 1 else overlap, seed=100_000 + number,
            )
        )  # fmt: skip
        clean, _ = soundfile.read(folder / "mixture.flac")
        recording = disturbed(clean, recordings, generator)
        soundfile.write(folder / "mixture.wav", recording, SAMPLE_RATE, subtype="PCM_16")
        separated = model.separate_recording(
            FileRecording(folder / "mixture.wav", None), folder=folder, undo_swaps=False
        )
        with closing(separated.estimates):
            estimates = np.concatenate(list(separated.estimates.blocks()), axis=1)
        active = strongest(estimates, speakers_in(folder / "conversation.rttm", estimates.shape[1] // FRAME))
        features = log_mel(np.concatenate([estimates, recording[None, : estimates.shape[1]]]))
        save((torch.from_numpy(features).half(), torch.from_numpy(active)), path)
        shutil.rmtree(folder)
        print(path, flush=True)


class Crops:
    """Random crops of the conversations in a folder, those that are added later too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[Path, tuple[Tensor, Tensor, Tensor]] = {}
        self.look()

    def look(self) -> None:
        """Read the conversations that are new."""
        for path in sorted(self.folder.glob("*.pt")):
            if path not in self.known:
                try:
                    features, active = torch.load(path)
                except (OSError, RuntimeError, UnpicklingError) as error:
                    raise UserError(f"{path}: cannot be read; delete it, and make it again with features") from error
                means = features[-1].float().exp().mean(-1).cumsum(0) / torch.arange(1, features.shape[1] + 1)
                self.known[path] = features, active, means

    def draw(self, generator: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return features (k + 1, F, bands), active estimates (k, F), and a level, see `ActivityNetwork.forward`."""
        features, active, means = list(self.known.values())[generator.integers(len(self.known))]
        start = int(generator.integers(0, features.shape[1] - CROP_FRAMES + 1))
        last = min(len(means) - 1, start + CROP_FRAMES + int(generator.integers(0, 400)))
        level = means[last].log() + generator.normal(0, 0.7)
        features, active = (values[:, start : start + CROP_FRAMES] for values in (features.float(), active))
        if generator.random() < 0.3:
            features = features + torch.linspace(-1, 1, BANDS) * generator.uniform(-2, 2)
        if generator.random() < 0.08:
            # One estimate that is the recording.
            nothing = torch.full_like(features[2], -60.0) + level
            features = torch.stack([features[2], nothing, features[2]])
            active = torch.stack([active.any(0), torch.zeros_like(active[0])])
        else:
            gains = torch.tensor([*generator.uniform(-0.5, 0.5, 2), 0.0])
            features = features + gains[:, None, None].float()
        return features, active.float(), level.float()


def train(args: argparse.Namespace) -> None:
    """Train for `args.minutes` of processor time with AdamW; write the exponential average of the weights."""
    torch.manual_seed(args.seed)
    network, step, spent = ActivityNetwork(), 0, 0.0
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=1e-2)
    average = torch.optim.swa_utils.AveragedModel(
        network, avg_fn=lambda old, new, count: old.lerp(new, 1 - min(0.998, (count + 1) / (count + 11)))
    )
    crops, state = Crops(args.out), args.out / "training.state"
    if not crops.known:
        raise UserError(f"{args.out}: found no conversations, expected those of activity.py features")
    if state.exists():
        saved = torch.load(state)
        for part, values in zip((network, optimizer, average), saved["parts"], strict=True):
            part.load_state_dict(values)
        step, spent = saved["step"], saved["spent"]
    generator = np.random.default_rng([args.seed, step])
    began, looked, losses = time.process_time() - spent, time.monotonic(), []

    def keep() -> None:
        parts = [part.state_dict() for part in (network, optimizer, average)]
        save({"parts": parts, "step": step, "spent": time.process_time() - began}, state)

    while (share := (time.process_time() - began) / 60 / args.minutes) < 1:
        if time.monotonic() - looked > 240:
            crops.look()
            keep()
            looked = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / 100) * min(1, (1 - share) / 0.7)
        features, active, levels = map(
            torch.stack, zip(*(crops.draw(generator) for _ in range(BATCH_SIZE)), strict=True)
        )
        loss = functional.binary_cross_entropy_with_logits(network(features, levels), active)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimizer.step()
        average.update_parameters(network)
        step += 1
        losses.append(loss.item())
        if step % 200 == 0:
            print(f"step {step}: loss {np.mean(losses[-200:]):.4f}, {len(crops.known)} conversations", flush=True)
    keep()
    export(average.module.eval(), args.out / ACTIVITY_GRAPH)


class _Exported(nn.Module):
    """The network for waveforms of mean square 1, whose mel powers have a known mean: triangles add up to 1."""

    def __init__(self, network: ActivityNetwork) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("level", torch.log(torch.tensor([MEL_MEAN])))

    def forward(self, features: Tensor) -> Tensor:
        return torch.sigmoid(self.network(features[None], self.level)[0])


def export(network: ActivityNetwork, path: Path) -> None:
    """Write the graph: log mel powers (k + 1, F, bands) to probabilities of activity (k, F); F is even."""
    partial = path.with_suffix(".partial")
    torch.onnx.export(
        _Exported(network), (torch.zeros(3, CROP_FRAMES, BANDS),), partial, input_names=["features"],
        output_names=["active"], dynamic_axes={"features": [0, 1], "active": [0, 1]}, dynamo=False,
    )  # fmt: skip
    partial.replace(path)
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    features, training = commands.add_parser("features"), commands.add_parser("train")
    for command, what in ((features, "length of a conversation"), (training, "processor time")):
        command.add_argument("out", type=Path, help="folder of the features and of the network")
        command.add_argument("--minutes", type=float, required=True, help=what)
    features.add_argument("--speech", type=Path, required=True, help="folder of recordings with train below it")
    features.add_argument("--noise", type=Path, required=True, help="folder of noise")
    features.add_argument("--separator", default="boxed_8k", help="model of two outputs at 8 kHz")
    features.add_argument("--first", type=int, default=0, help="number of the first conversation, which is its seed")
    features.add_argument("--count", type=int, required=True, help="number of conversations")
    training.add_argument("--seed", type=int, default=0, help="of the weights and the crops")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        write_features(args) if args.command == "features" else train(args)
    except UserError as error:
        raise SystemExit(f"activity.py: {error}") from None


if __name__ == "__main__":
    main()
