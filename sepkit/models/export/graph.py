"""A model written in operations that an ONNX graph can hold. All lengths are computed inside the graph."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.features import latent_features, latent_sums
from sepkit.models.filterbanks import Filterbank
from sepkit.models.maskers.base import FrameStream, Masker, MaskerOutput
from sepkit.models.maskers.sudormrf import SlidingFilters
from sepkit.models.norms import StreamState
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.models.stft_filterbank import STFTFilterbank, window_and_scales
from sepkit.types import Separation


class GraphModel(nn.Module):
    """Mixtures (B, T) to estimates (B, n, T), scores (B, n) where there are any, and features: for tracing alone.

    Padding and cropping are those of `EncoderMaskerDecoder`, written for lengths that are values of the graph: tensors
    are padded too far and then cut to such a length.

    Attributes:
        inputs, outputs: names, known for outputs after a first call.
        axes: names of the axes of inputs and outputs that may be of any length.

    Args:
        model: not changed; latents take their values at test (mean or median).
    """

    def __init__(self, model: EncoderMaskerDecoder) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).cpu().float().eval()
        bank = self.model.filterbank
        if isinstance(bank, STFTFilterbank):
            for coder in (bank.encoder, bank.decoder):
                coder.filterbank = _FourierFilters(*window_and_scales(coder.filters))  # type: ignore[assignment]
        _replace_layers(self.model)
        self.inputs, self.outputs = ["mixture"], ["estimates"]
        self.axes = {name: {0: "batch", 1: "speakers", 2: "samples"} for name in self.outputs} | {
            "mixture": {0: "batch", 1: "samples"}
        }

    def example(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Inputs, a second of noise."""
        return (_noise(batch, self.model.sample_rate),)

    def forward(self, mixture: Tensor) -> tuple[Tensor, ...]:
        """What `outputs` names."""
        model = self.model
        bank = model.filterbank
        num_samples = mixture.shape[-1]
        left, total = _padded(bank, num_samples, model.pad)
        gain = model._gain(mixture) if model.input_norm == "mixture" else torch.ones(())
        mixture = mixture * gain
        standardized = (mixture - model.signal_mean) / model.signal_std
        # No padding on the right is longer than this.
        most = 2 * bank.kernel_size + bank.stride + bank.multiple
        raw = bank.encode(functional.pad(standardized, (left, most))[..., :total])
        masked, separation = self._masked(raw)
        decoded = bank.decode(masked)
        # "asteroid" may fall short of the input by less than a stride.
        whole = functional.pad(decoded, (0, bank.stride))
        separation.estimates = whole[..., left : num_samples + left] * (model.signal_std / gain.unsqueeze(-1))
        return self._named(separation, latent_features(model, separation, estimated=False))

    def _masked(self, raw: Tensor, state: StreamState | None = None) -> tuple[Tensor, Separation]:
        """Return masked encodings of an encoder's raw values, and a separation that lacks its estimates."""
        model, bank = self.model, self.model.filterbank
        encoding = model.encoding_family.posterior(raw.unflatten(-2, (-1, bank.full_dim)))
        z = model.encoding_family.at_test(encoding)
        features = bank.features(z)
        made = model._masker_output(features) if state is None else MaskerOutput(model.masker(features, state))
        masks = model.mask_posterior(made.values)
        mask = model.mask_family.at_test(masks)
        extras: dict[str, Any] = {}
        if model.encoding_prior is not None:
            extras["encoding_prior"] = model.encoding_prior()
        if model.mask_prior is not None:
            extras["mask_prior"] = model.mask_prior()
        masked = bank.apply_mask(mask, z)
        return masked, Separation(masked, encoding, masks, model._scores(made, mask), extras=extras)

    def _named(self, separation: Separation, features: dict[str, Tensor]) -> tuple[Tensor, ...]:
        scores = {} if separation.scores is None else {"scores": separation.scores}
        self.outputs = ["estimates", *scores, *features]
        self.axes |= {name: {0: "batch", 1: "speakers"} for name in self.outputs[1:]}
        return separation.estimates, *scores.values(), *features.values()


class CausalGraphModel(GraphModel):
    """Blocks of a recording (B, k * stride) and a state to estimates, sums of features, and the next state.

    A state of zeros is that of a recording that begins. Estimates (B, n, k * stride) are `delay_samples` late: the
    first are those of the padding on the left. All of a recording in one block is separated as `GraphModel` does it.

    Attributes:
        delay_samples: synthesis_size - stride.
        state: shape for one recording, and axis of the recordings, of each part of the state; no axis: all share it.
    """

    def __init__(self, model: EncoderMaskerDecoder) -> None:
        super().__init__(model)
        bank = self.model.filterbank
        self.delay_samples = bank.synthesis_size - bank.stride
        of_batches = [self._first_state(batch) for batch in (1, 2)]
        self._structure = of_batches[0][0]
        self.state: list[tuple[tuple[int, ...], int | None]] = []
        for one, two in zip(*(state[1] for state in of_batches), strict=True):
            axes = [axis for axis in range(one.ndim) if one.shape[axis] != two.shape[axis]]
            self.state.append((tuple(one.shape), axes[0] if axes else None))
        for number, (_, axis) in enumerate(self.state):
            self.inputs.append(f"state_{number}")
            self._next = [f"next_{name}" for name in self.inputs[1:]]
            along = {} if axis is None else {axis: "states" if self.state[number][0][axis] > 1 else "batch"}
            self.axes |= {self.inputs[-1]: along, self._next[-1]: along}

    @staticmethod
    def fits(model: EncoderMaskerDecoder) -> bool:
        """Whether a model's stream has a state of constant size and needs no frame that follows."""
        bank = model.filterbank
        left, _ = bank.padding_for(1, model.pad)
        if not model.causal or model.scoring_head is not None:
            return False
        # The state of zeros stands for the padding on the left.
        if left + bank.padding != bank.kernel_size - bank.stride:
            return False
        return isinstance(model.masker, Masker) and isinstance(model.masker.stream(), FrameStream)

    def _first_state(self, batch: int) -> tuple[TreeSpec, list[Tensor]]:
        """Return the form of the masker's state, and zeros for the whole state."""
        model, bank = self.model, self.model.filterbank
        state: StreamState = {}
        with torch.no_grad():
            model.masker(torch.zeros(batch, bank.encoding_dim, 2), state)
        waiting = bank.kernel_size - bank.stride
        own = [torch.zeros(batch, waiting), torch.zeros(batch, model.hypotheses, bank.synthesis_size - bank.stride)]
        parts, form = tree_flatten(state)
        return form, own + [torch.zeros_like(part) for part in parts]

    def example(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Inputs, about a second of noise and the first state."""
        stride = self.model.filterbank.stride
        return _noise(batch, self.model.sample_rate // stride * stride), *self._first_state(batch)[1]

    def forward(self, mixture: Tensor, *state: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """What `outputs` names."""
        model, bank = self.model, self.model.filterbank
        waiting, overlap, *of_masker = state
        samples = torch.cat([waiting, (mixture - model.signal_mean) / model.signal_std], dim=-1)
        stream = tree_unflatten(of_masker, self._structure)
        masked, separation = self._masked(bank.encode_frames(samples), stream)
        filters = bank.decoder.filters[..., -bank.synthesis_size :]
        decoded = functional.conv_transpose1d(masked.flatten(0, 1), filters, stride=bank.stride)
        decoded = decoded.reshape(-1, model.hypotheses, decoded.shape[-1])
        rest = self.delay_samples
        decoded = torch.cat([decoded[..., :rest] + overlap, decoded[..., rest:]], dim=-1)
        num_samples = mixture.shape[-1]
        separation.estimates = decoded[..., :num_samples] * model.signal_std
        made = self._named(separation, latent_sums(model, separation))
        self.outputs += self._next
        return *made, samples[..., num_samples:], decoded[..., num_samples:], *tree_flatten(stream)[0]


def _noise(batch: int, num_samples: int) -> Tensor:
    return torch.randn(batch, num_samples, generator=torch.Generator().manual_seed(0))


def _padded(bank: Filterbank, num_samples: Any, pad: str) -> tuple[int, Any]:
    """Zeros on the left, and the padded length: `Filterbank.padding_for` for a length that is a tensor."""
    shortest = bank.kernel_size - 2 * bank.padding
    if pad == "asteroid":
        left, total = 0, torch.as_tensor(num_samples).clamp(min=shortest)
    else:
        left = bank.kernel_size - bank.stride - bank.padding
        frames = torch.as_tensor(num_samples + bank.synthesis_size + bank.stride - 1) // bank.stride - 2
        total = frames * bank.stride + shortest
    return left, (total + bank.multiple - 1) // bank.multiple * bank.multiple


class GraphEncoder(nn.Module):
    """An encoder from waveforms (B, T) to embeddings (B, D), and to speech (B, F) if it detects it; for tracing only.

    Args:
        encoder: not changed.
    """

    def __init__(self, encoder: SpeakerEncoder) -> None:
        super().__init__()
        self.model = copy.deepcopy(encoder).cpu().float().eval()
        self.model.power_spectra = self._power_spectra  # type: ignore[method-assign]
        window = self.model.window
        self.fourier = _FourierFilters(window, torch.ones(len(window) // 2 + 1))
        self.inputs, self.outputs = ["waveforms"], ["embeddings"]
        self.axes = {"waveforms": {0: "batch", 1: "samples"}, "embeddings": {0: "batch"}}
        if encoder.speech is not None:
            self.outputs.append("speech")
            self.axes["speech"] = {0: "batch", 1: "frames"}

    def example(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Inputs, a second of noise."""
        return (_noise(batch, self.model.sample_rate),)

    def forward(self, waveforms: Tensor) -> tuple[Tensor, ...]:
        """Embeddings, and speech."""
        speech = () if self.model.speech is None else (self.model.speech_of(waveforms),)
        return self.model(waveforms), *speech

    def _power_spectra(self, waveforms: Tensor) -> Tensor:
        shortest = self.model.shortest
        num_samples = torch.as_tensor(waveforms.shape[-1]).clamp(min=shortest)
        padded = functional.pad(waveforms, (0, shortest))[..., :num_samples]
        spectra = functional.conv1d(padded.unsqueeze(1), self.fourier._filters, stride=self.model.hop)
        real, imaginary = spectra.chunk(2, dim=1)
        return (real.square() + imaginary.square()).transpose(1, 2)


class _FourierFilters(nn.Module):
    """Windowed waves, (2 K, 1, T): s_k w(t) cos(2 pi k t / T) and then -s_k w(t) sin(2 pi k t / T).

    A graph makes them of a few tables when it is opened, because they take megabytes.

    Args:
        window: w, (T,).
        scales: s, (K,).
    """

    def __init__(self, window: Tensor, scales: Tensor) -> None:
        super().__init__()
        angles = 2 * math.pi * torch.arange(len(window), dtype=torch.float64) / len(window)
        tables = {
            "window": window.clone(),
            "scales": scales.clone().unsqueeze(-1),
            "waves": torch.stack([angles.cos(), -angles.sin()]).float(),
            # Buffers, because the exporter would store the product of constants.
            "times": torch.arange(len(window)),
            "bins": torch.arange(len(scales)).unsqueeze(-1),
        }
        for name, table in tables.items():
            self.register_buffer(name, table)
        self.length = len(window)

    @property
    def _filters(self) -> Tensor:
        waves = self.waves[:, self.bins * self.times % self.length]  # type: ignore[index,operator]
        return (waves * self.scales * self.window).flatten(0, 1).unsqueeze(1)  # type: ignore[operator]


def _replace_layers(model: nn.Module) -> None:
    """Replace sliding filters by a convolution, and PReLUs of one slope by leaky ReLUs.

    ONNX Runtime computes leaky ReLUs inside the convolution before them.
    """
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, SlidingFilters):
                setattr(parent, name, _convolution_of(child))
            elif isinstance(child, nn.PReLU) and child.num_parameters == 1:
                setattr(parent, name, nn.LeakyReLU(child.weight.item()))


@torch.no_grad()
def _convolution_of(filters: SlidingFilters) -> nn.Conv1d:
    """Return the convolution that computes sliding filters, with its matrix as a constant of the graph."""
    dim = filters.encoding_dim
    response, offset = filters(torch.eye(dim).unsqueeze(0))[0], filters(torch.zeros(1, dim, 1))[0]
    plain = nn.Conv1d(dim, len(response), 1)
    plain.weight.copy_((response - offset).unsqueeze(-1))
    assert plain.bias is not None
    plain.bias.copy_(offset[:, 0])
    return plain


# ---------------------------------------------------------------------------------------------------- while tracing


class PlainOperations(TorchFunctionMode):
    """Inside this context, operations that torch's exporter lacks or gets wrong are computed by others.

    In torch 2.11, unflatten fixes every length to that of the example, movedim lacks negative dimensions, and
    unfold and fold do not accept lengths that are values of the graph.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _PLAIN.get(func, func)(*args, **(kwargs or {}))


def _unflatten(x: Tensor, dim: int, sizes: Any) -> Tensor:
    dim %= x.dim()
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _movedim(x: Tensor, source: int, destination: int) -> Tensor:
    order = list(range(x.dim()))
    order.insert(destination % x.dim(), order.pop(source % x.dim()))
    return x.permute(order)


def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    assert dimension in (-1, x.dim() - 1)
    count = torch.as_tensor(x.shape[-1] - size) // step + 1
    index = torch.arange(count).unsqueeze(-1) * step + torch.arange(size)  # type: ignore[call-overload]
    return x[..., index]


def _fold(
    x: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Overlap-add along time, as a transposed convolution with the unit matrix."""
    length, taps, hop, before = output_size[0], int(kernel_size[0]), int(stride[0]), int(padding[0])
    channels = int(x.shape[1]) // taps
    added = functional.conv_transpose1d(x.reshape(-1, taps, x.shape[-1]), torch.eye(taps).unsqueeze(1), stride=hop)
    # The last frames may lie in no chunk.
    cut = functional.pad(added, (0, hop))[..., before : length + before]
    return cut.reshape(-1, channels, length).unsqueeze(-1)


def _lgamma(x: Tensor) -> Tensor:
    """The logarithm of the gamma function for x > 0: Stirling's series eight steps further on, and the way back."""
    far = x + 8
    series = 1 / (12 * far) - 1 / (360 * far**3) + 1 / (1260 * far**5)
    steps = sum(((x + step).log() for step in range(1, 8)), x.log())
    return (far - 0.5) * far.log() - far + 0.5 * math.log(2 * math.pi) + series - steps


def _digamma(x: Tensor) -> Tensor:
    """The derivative of `_lgamma`, in the same way."""
    far = x + 8
    series = 1 / (2 * far) + 1 / (12 * far**2) - 1 / (120 * far**4) + 1 / (252 * far**6)
    return far.log() - series - sum((1 / (x + step) for step in range(1, 8)), 1 / x)


def _expm1(x: Tensor) -> Tensor:
    half = (x / 2).tanh()
    # Each loses digits where the other does not.
    return torch.where(x < 1, 2 * half / (1 - half), x.exp() - 1)


def _interpolate(x: Tensor, size: Any = None, **options: Any) -> Tensor:
    """The nearest frame of each place, for a length that is a value of the graph."""
    if size is None:
        return functional.interpolate(x, **options)
    return x[..., (torch.arange(size) * (torch.as_tensor(x.shape[-1]).float() / size)).long()]


def _adaptive_avg_pool1d(x: Tensor, output_size: Any) -> Tensor:
    """Means over as many stretches of frames, which may share their ends."""
    length, count = torch.as_tensor(x.shape[-1]), torch.as_tensor(output_size)
    place = torch.arange(count)  # type: ignore[call-overload]
    first, end = place * length // count, ((place + 1) * length + count - 1) // count
    sums = functional.pad(x.cumsum(-1), (1, 0))
    return (sums[..., end] - sums[..., first]) / (end - first)


def _rms_norm(x: Tensor, shape: Any, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


_PLAIN: dict[Any, Any] = {
    Tensor.unflatten: _unflatten,
    Tensor.movedim: _movedim,
    Tensor.unfold: _unfold,
    functional.fold: _fold,
    Tensor.expm1: _expm1,
    torch.lgamma: _lgamma,
    torch.digamma: _digamma,
    functional.rms_norm: _rms_norm,
    functional.interpolate: _interpolate,
    functional.adaptive_avg_pool1d: _adaptive_avg_pool1d,
}
