"""Streams against the same model on the whole recording, for any blocks, and against the latency they state."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sepkit import config as c
from sepkit.models import EncoderMaskerDecoder, build_model
from sepkit.models.filterbanks import FreeFilterbank
from sepkit.models.latents import Deterministic
from sepkit.models.maskers import DualPathRNNMasker
from sepkit.models.streaming import ModelStream
from tests.complaint import complaint

FREE = c.FreeFilterbankConfig(num_filters=7, kernel_size=16, stride=8)
# Filters that overlap more than twice, with a stride that does not divide them.
DENSE = c.FreeFilterbankConfig(num_filters=5, kernel_size=10, stride=3)
# As SuDoRM-RF has them: zeros that the convolutions add, a right end that is padded to a multiple.
PADDED = c.FreeFilterbankConfig(6, 21, 10, padding=10, output_padding=9, multiple=40, init_range=0.3)
STFT = c.STFTFilterbankConfig(kernel_size=16, stride=4)
COMPLEX = c.STFTFilterbankConfig(kernel_size=16, stride=8, complex_masks=True)
# Windows that hear 16 samples and wait for 8, which overlap by a half and by two of six.
LATE = c.STFTFilterbankConfig(kernel_size=16, stride=4, synthesis_size=8, complex_masks=True)
LATER = c.STFTFilterbankConfig(kernel_size=18, stride=6, synthesis_size=8)


def conv_tasnet(norm: str, kernel_size: int = 3, skip_channels: int = 7) -> c.ConvTasNetConfig:
    return c.ConvTasNetConfig(6, 10, skip_channels, kernel_size, blocks=3, repeats=2, norm=norm, causal=True)


def dual_path(chunk_size, hop_size, rnn="lstm", norm="channel_layer_norm") -> c.DualPathRNNConfig:
    return c.DualPathRNNConfig(6, 5, chunk_size, hop_size, repeats=2, rnn=rnn, bidirectional=False, norm=norm)


def recurrent(rnn: str, norm: str) -> c.RecurrentConfig:
    return c.RecurrentConfig(rnn=rnn, hidden_size=5, num_layers=2, bidirectional=False, norm=norm)


def gated_recurrence(norm: str, bands: int = 1) -> c.GatedRecurrenceConfig:
    return c.GatedRecurrenceConfig(6, 5, 7, num_layers=2, bands=bands, bidirectional=False, norm=norm)


CAUSAL = {
    "conv-tasnet, cumulative": (FREE, conv_tasnet("cumulative_layer_norm")),
    "conv-tasnet, a norm a frame": (DENSE, conv_tasnet("channel_layer_norm", kernel_size=2)),
    "conv-tasnet, batch norm, no skip path": (STFT, conv_tasnet("batch_norm", kernel_size=4, skip_channels=0)),
    "conv-tasnet, padded filterbank": (PADDED, conv_tasnet("cumulative_layer_norm", kernel_size=1)),
    "dprnn": (FREE, dual_path(8, 4)),
    "dprnn, hop that does not divide": (STFT, dual_path(7, 3, rnn="gru")),
    "dprnn, chunks side by side": (DENSE, dual_path(5, 5, norm="batch_norm")),
    "dprnn, one frame a chunk": (PADDED, dual_path(1, 1)),
    "lstm": (STFT, recurrent("lstm", "cumulative_layer_norm")),
    "gated recurrence, complex masks": (COMPLEX, gated_recurrence("cumulative_layer_norm")),
    "gated recurrence, synthesis windows at the end": (LATE, gated_recurrence("channel_layer_norm")),
    "lstm, synthesis windows that hardly overlap": (LATER, recurrent("lstm", "channel_layer_norm")),
    "gated recurrence, bands": (STFT, gated_recurrence("channel_layer_norm", bands=4)),
    "continuous depth": (COMPLEX, c.ContinuousDepthConfig(6, 5, 7, 3, False, norm="cumulative_layer_norm")),
    "gru": (FREE, recurrent("gru", "channel_layer_norm")),
}
_built: dict[tuple, EncoderMaskerDecoder] = {}
SEEDS = st.integers(0, 1000)


def blocks(largest: int) -> st.SearchStrategy[list[int]]:
    """Some sizes of blocks."""
    return st.lists(st.integers(0, largest), min_size=1, max_size=5)


def causal_model(name: str, pad: str = "full", **latents) -> EncoderMaskerDecoder:
    """Build a model in evaluation mode, with signal statistics and weights of its own."""
    key = (name, pad, repr(latents))
    if key not in _built:
        filterbank, masker = CAUSAL[name]
        torch.manual_seed(0)
        if getattr(filterbank, "complex_masks", False):
            latents.setdefault("masks", c.DeterministicConfig(activation="linear"))
        model = build_model(c.ModelConfig(filterbank=filterbank, masker=masker, hypotheses=3, pad=pad, **latents))  # type: ignore[arg-type]
        for parameter in model.parameters():
            if parameter.dim() == 1:  # Gains and offsets of norms, which start as ones and zeros.
                torch.nn.init.normal_(parameter, 0.5, 0.3)
        model.set_signal_statistics(0.01, 0.3)
        _built[key] = model.eval()
    return _built[key]


def streamed(model: EncoderMaskerDecoder, mixture: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Stream blocks of these sizes, repeated; check that nothing comes earlier or later than it may."""
    stream = ModelStream(model, len(mixture))
    parts, position, returned, index = [], 0, 0, 0
    while position < mixture.shape[-1]:
        size = sizes[index % len(sizes)] if index < 3 * len(sizes) else 64
        parts.append(stream.push(mixture[:, position : position + size]))
        position, returned = min(position + size, mixture.shape[-1]), returned + parts[-1].shape[-1]
        assert position - stream.lookahead_samples <= returned <= position
        index += 1
    return torch.cat([*parts, stream.finish()], -1)


def assert_equal(model: EncoderMaskerDecoder, mixture: torch.Tensor, sizes: list[int]) -> None:
    with torch.no_grad():
        whole = model(mixture).estimates
    blocks = streamed(model, mixture, sizes)
    assert blocks.shape == whole.shape
    torch.testing.assert_close(blocks, whole, rtol=1e-5, atol=1e-5 * float(whole.abs().max()) + 1e-9)


@pytest.mark.parametrize("name", CAUSAL)
@given(num_samples=st.integers(1, 300), sizes=blocks(90), pad=st.sampled_from(["full", "asteroid"]), seed=SEEDS)
@settings(max_examples=12, deadline=None)
def test_any_blocks_give_what_the_whole_recording_gives(name, num_samples, sizes, pad, seed):
    pad = "full" if CAUSAL[name][0] in (LATE, LATER) else pad
    mixture = 0.3 * torch.randn(1, num_samples, generator=torch.Generator().manual_seed(seed))
    assert_equal(causal_model(name, pad), mixture, sizes)


@pytest.mark.parametrize("name", CAUSAL)
def test_sample_by_sample_and_recordings_side_by_side(name):
    torch.manual_seed(1)
    assert_equal(causal_model(name), 0.3 * torch.randn(2, 130), [1])


@pytest.mark.parametrize("masks", [c.LogNormalConfig(), c.BetaConfig(), c.DeterministicConfig(activation="softmax")])
@pytest.mark.parametrize("name", ["conv-tasnet, cumulative", "dprnn", "lstm"])
def test_variational_models_stream_their_means_and_medians(name, masks):
    torch.manual_seed(1)
    assert_equal(causal_model(name, encoding=c.GaussianConfig(), masks=masks), 0.3 * torch.randn(1, 200), [13, 0, 50])


@pytest.mark.parametrize("name", CAUSAL)
def test_look_ahead_is_as_stated_and_no_less(name):
    """Sample by sample, the samples missing behind the input reach the stated number and never exceed it."""
    model = causal_model(name)
    stream, missing, returned = ModelStream(model), [], 0
    for pushed in range(1, 200):
        returned += stream.push(torch.zeros(1, 1)).shape[-1]
        missing.append(pushed - returned)
    assert max(missing) == stream.lookahead_samples
    chunk = getattr(model.masker, "chunk_size", 1)
    assert stream.lookahead_samples == (chunk - 1) * model.filterbank.stride + model.filterbank.synthesis_size - 1


def test_float32_keeps_its_digits_over_minutes():
    """Float32 sums of norms would have lost three digits after 200 000 frames with an offset."""
    torch.manual_seed(0)
    model = build_model(c.ModelConfig(filterbank=FREE, masker=conv_tasnet("cumulative_layer_norm"))).eval()
    mixture = 0.1 * torch.randn(1, 400_000) + 1
    stream = ModelStream(model)
    blocks = torch.cat([stream.push(block) for block in mixture.split(9999, -1)] + [stream.finish()], -1)
    with torch.no_grad():
        exact = model.double()(mixture.double()).estimates
    late = slice(-20_000, None)
    assert (blocks[..., late].double() - exact[..., late]).norm() < 1e-5 * exact[..., late].norm()


@given(frames=st.integers(1, 60), chunk_size=st.integers(1, 9), data=st.data(), sizes=blocks(20))
@settings(max_examples=40, deadline=None)
def test_chunks_of_any_size_and_hop(frames, chunk_size, data, sizes):
    torch.manual_seed(0)
    hop_size = data.draw(st.integers(1, chunk_size))
    masker = DualPathRNNMasker(
        4, 2, 2, bottleneck_channels=3, hidden_channels=2, chunk_size=chunk_size, hop_size=hop_size, repeats=2,
        bidirectional=False, norm="channel_layer_norm",
    ).eval()  # fmt: skip
    features = torch.randn(2, 4, frames)
    stream = masker.stream()
    position, parts = 0, []
    with torch.no_grad():
        for size in [*sizes, frames]:
            parts.append(stream.push(features[..., position : position + size]))
            position = min(position + size, frames)
        parts.append(stream.push(features[..., :0], end=True))
        torch.testing.assert_close(torch.cat(parts, -1), masker(features), rtol=1e-5, atol=1e-6)


def test_nothing_pushed_is_nothing_returned():
    stream = ModelStream(causal_model("dprnn"))
    assert stream.push(torch.zeros(1, 0)).shape == stream.finish().shape == (1, 3, 0)


@pytest.mark.parametrize(
    ("masker", "what"),
    [
        (c.ConvTasNetConfig(blocks=1, repeats=1), r"this conv_tasnet \(causal: false\)"),
        (c.RecurrentConfig(hidden_size=4), r"this recurrent masker \(bidirectional: true\)"),
        (recurrent("gru", "global_layer_norm"), r"this recurrent masker \(norm: global_layer_norm\)"),
        (c.DualPathRNNConfig(4, 4, 8, 4, repeats=1), r"this dual_path_rnn \(bidirectional: true\)"),
        (dual_path(8, 4, norm="global_layer_norm"), r"this dual_path_rnn \(norm: global_layer_norm\)"),
        (c.ImprovedSuDoRMRFConfig(8, 8, blocks=1, upsampling_depth=2), "the masker ImprovedSuDoRMRFMasker"),
    ],
)
def test_models_that_look_ahead_are_refused_with_what_would_do(masker, what):
    model = build_model(c.ModelConfig(filterbank=FREE, masker=masker)).eval()
    words = f"^streaming: {what} needs the whole recording.*causal maskers are conv_tasnet"
    line = complaint(lambda: ModelStream(model), words)
    assert all(causal.name in line for _, causal in CAUSAL.values())


def test_a_module_that_is_no_masker_is_refused():
    linear = Deterministic("linear")
    masker = torch.nn.Identity()
    masker.hypotheses = 1  # type: ignore[assignment]
    model = EncoderMaskerDecoder(FreeFilterbank(4), masker, linear, linear, sample_rate=8000).eval()
    complaint(lambda: ModelStream(model), r"^streaming: the masker Identity")


def test_misuse_is_an_error():
    model = causal_model("gru")
    with pytest.raises(ValueError, match="training mode"):
        ModelStream(build_model(model.config))
    stream = ModelStream(model)
    for wrong in (torch.zeros(3), torch.zeros(2, 3), torch.zeros(1, 3, dtype=torch.int16)):
        with pytest.raises(ValueError, match=r"expected floating-point \(1, T\)"):
            stream.push(wrong)
    stream.finish()
    for again in (lambda: stream.push(torch.zeros(1, 3)), stream.finish):
        with pytest.raises(ValueError, match="the stream is finished"):
            again()
