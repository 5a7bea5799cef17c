import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sepkit.models.filterbanks import FreeFilterbank
from sepkit.models.stft_filterbank import STFTFilterbank
from tests.published import peer


@st.composite
def geometries(draw):
    kernel_size = draw(st.integers(1, 24))
    stride = draw(st.integers(1, kernel_size))
    return {
        "kernel_size": kernel_size,
        "stride": stride,
        "padding": draw(st.integers(0, kernel_size - stride)),
        "output_padding": draw(st.integers(0, stride - 1)),
        "multiple": draw(st.sampled_from([1, 2, 7, 80])),
    }


@settings(deadline=None, max_examples=150)
@given(geometry=geometries(), num_samples=st.integers(1, 60))
def test_full_padding_keeps_every_frame_that_holds_a_sample(geometry, num_samples):
    bank = FreeFilterbank(num_filters=2, **geometry)
    left, right = bank.padding_for(num_samples, "full")
    assert left >= 0 and right >= 0
    frames = bank.encode(torch.zeros(1, left + num_samples + right)).shape[-1]
    for sample in (0, num_samples // 2, num_samples - 1):
        position = sample + left + bank.padding
        holding = [f for f in range(-100, 400) if f * bank.stride <= position < f * bank.stride + bank.kernel_size]
        assert holding and min(holding) >= 0 and max(holding) < frames


@settings(deadline=None, max_examples=150)
@given(geometry=geometries(), num_samples=st.integers(1, 60), pad=st.sampled_from(["full", "asteroid"]))
@example({"kernel_size": 6, "stride": 2, "padding": 3, "output_padding": 0, "multiple": 1}, 1, "asteroid")
def test_decoded_waveforms_reach_the_end_and_the_right_multiple(geometry, num_samples, pad):
    bank = FreeFilterbank(num_filters=2, **geometry)
    left, right = bank.padding_for(num_samples, pad)
    padded = left + num_samples + right
    decoded = bank.decode(bank.encode(torch.zeros(1, padded)).unsqueeze(1)).shape[-1]
    assert padded % bank.multiple == 0
    if pad == "full":
        assert decoded >= left + num_samples
    else:
        assert left == 0 and decoded > num_samples - bank.stride


@settings(deadline=None, max_examples=60)
@given(geometry=geometries(), num_samples=st.integers(24, 60))
def test_products_are_the_convolutions(geometry, num_samples):
    bank = FreeFilterbank(num_filters=3, **geometry).double()
    waveform = torch.randn(2, num_samples, dtype=torch.float64)
    convolved = bank.encode(waveform)
    with torch.no_grad():
        torch.testing.assert_close(bank.encode(waveform), convolved.detach())
    encoding = torch.randn(2, 2, 3, convolved.shape[-1], dtype=torch.float64)
    expected = torch.nn.functional.conv_transpose1d(encoding.flatten(0, 1), bank.decoder.filters, stride=bank.stride)
    torch.testing.assert_close(bank.decode_frames(encoding), expected.view(2, 2, -1))
    waveforms = bank.decode(encoding.requires_grad_())
    with torch.no_grad():
        torch.testing.assert_close(bank.decode(encoding), waveforms.detach())


@pytest.mark.parametrize(
    ("kernel_size", "stride", "changes"),
    [
        *((512, 256, {}), (10, 5, {}), (64, 16, {"synthesis_size": 32}), (64, 24, {"synthesis_size": 30})),
        *((size, stride, {"like_torch": True}) for size, stride in ((64, 20), (256, 64), (2, 1))),
    ],
)
def test_fourier_transforms_are_the_convolutions(kernel_size, stride, changes):
    bank = STFTFilterbank(kernel_size=kernel_size, stride=stride, **changes)
    waveform = torch.randn(2, 1000, requires_grad=True)
    coefficients = bank.encoder(waveform.unsqueeze(1))
    encoding = torch.randn(2, 3, *coefficients.shape[1:], requires_grad=True)
    pairs = ((bank.encode, waveform, coefficients), (bank.decode, encoding, bank.decoder(encoding)))
    for transform, x, expected in pairs:
        with torch.no_grad():
            close = {"rtol": 0, "atol": 1e-6 * float(expected.abs().max())}
            torch.testing.assert_close(transform(x), expected, **close)
        found = transform(x)
        torch.testing.assert_close(found, expected, **close)
        upstream = torch.randn_like(found)
        (gradient,) = torch.autograd.grad(found, x, upstream)
        (right,) = torch.autograd.grad(expected, x, upstream)
        torch.testing.assert_close(gradient, right, rtol=0, atol=1e-6 * float(right.abs().max()))


@pytest.mark.parametrize(
    "bank",
    [
        FreeFilterbank(num_filters=3, kernel_size=6, stride=2),
        STFTFilterbank(kernel_size=8, stride=4),
        STFTFilterbank(kernel_size=8, stride=2, complex_masks=True),
        STFTFilterbank(kernel_size=8, stride=4, complex_masks=True, features="real_imaginary", compression=0.3),
        STFTFilterbank(kernel_size=8, stride=4, complex_masks=True, features="real_imaginary", mapping=True),
    ],
)
def test_energy_of_noise_in_masks(bank):
    """The energies of each mask value's own waveform, times its variance, add up."""
    bank = bank.double()
    encoding, variance = torch.randn(1, bank.full_dim, 3).double(), torch.rand(1, 2, bank.mask_dim, 3).double()
    each = torch.eye(bank.mask_dim * 3, dtype=torch.float64).view(1, -1, bank.mask_dim, 3)
    energies = bank.decode_frames(bank.apply_mask(each, encoding)).square().sum(-1)[0]
    found = bank.decoded_energy(bank.masked_variance(variance, encoding))
    torch.testing.assert_close(found, variance.flatten(2) @ energies)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (FreeFilterbank(5, 6, 2), ("free", 5, 6, 2)),
        (FreeFilterbank(5, 21, 10, padding=10, output_padding=9), ("free", 5, 21, 10)),
        (STFTFilterbank(64, 16), ("stft", 64, 64, 16)),
        (STFTFilterbank(20, 10), ("stft", 20, 20, 10)),
    ],
    ids=["free", "padded", "stft quarter", "stft half"],
)
def test_encoders_and_decoders_are_those_of_asteroid(ours, theirs):
    filterbanks = peer("asteroid_filterbanks")
    name, *sizes = theirs
    if name == "stft":  # tight frames: one window for analysis and synthesis
        bank = filterbanks.STFTFB(*sizes)
        encoder, decoder = filterbanks.Encoder(bank), filterbanks.Decoder(bank)
    else:
        encoder, decoder = filterbanks.make_enc_dec(name, *sizes)
        decoder.load_state_dict(ours.decoder.state_dict())
        encoder.load_state_dict(ours.encoder.state_dict())
    encoder.padding = decoder.padding = ours.padding
    decoder.output_padding = ours.decoder.output_padding
    for here, there in ((ours.encoder, encoder), (ours.decoder, decoder)):
        # To the bit, signs of zeros too: digests of models count them.
        mine, other = ({n: t.numpy().tobytes() for n, t in one.state_dict().items()} for one in (here, there))
        assert mine == other
    for here, there, x in (
        (ours.encode, encoder, torch.randn(2, 200).unsqueeze(1)),
        (ours.decode, decoder, torch.randn(2, 3, ours.full_dim, 9)),
    ):
        found, expected = (x.clone().requires_grad_() for _ in range(2))
        outputs = here(found.squeeze(1)), there(expected)
        torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
        upstream = torch.randn_like(outputs[0])
        for output in outputs:
            output.backward(upstream)
        torch.testing.assert_close(found.grad, expected.grad, rtol=0, atol=1e-5)


def test_free_filterbank_convolves_and_transposes():
    bank = FreeFilterbank(num_filters=5, kernel_size=6, stride=2)
    waveform = torch.randn(3, 20)
    encoding = bank.encode(waveform)
    windows = waveform.unfold(-1, 6, 2)
    torch.testing.assert_close(encoding, torch.einsum("bft,kt->bkf", windows, bank.encoder.filters[:, 0]))
    decoded = bank.decode(encoding.unsqueeze(1))
    expected = torch.zeros(3, 20)
    for frame in range(encoding.shape[-1]):
        expected[:, 2 * frame : 2 * frame + 6] += encoding[:, :, frame] @ bank.decoder.filters[:, 0]
    torch.testing.assert_close(decoded[:, 0], expected)


def test_initial_filters():
    small = FreeFilterbank(num_filters=64, init_range=0.01)
    for filters in (small.encoder.filters, small.decoder.filters):
        assert filters.abs().max() <= 0.01
        assert filters.std().item() == pytest.approx(0.01 / 3**0.5, rel=0.1)
    xavier = FreeFilterbank(num_filters=512, kernel_size=16)
    assert xavier.encoder.filters.std().item() == pytest.approx((2 / (512 * 16 + 16)) ** 0.5, rel=0.05)


def test_synthesis_windows_at_the_end_are_those_of_mauler_and_martin():
    """Half of a long root of a Hann window, then half of a short one; times the synthesis they are a Hann window."""
    bank = STFTFilterbank(64, 16, synthesis_size=32)
    analysis, synthesis = (coder.filterbank.torch_window for coder in (bank.encoder, bank.decoder))
    long, short = (torch.hann_window(2 * size, dtype=torch.float64).sqrt().float() for size in (48, 16))
    torch.testing.assert_close(analysis, torch.cat([long[:48], short[16:]]), rtol=0, atol=1e-6)
    assert synthesis[:32].eq(0).all()
    torch.testing.assert_close((analysis * synthesis)[32:], torch.hann_window(32) * 64 / 32, rtol=0, atol=1e-6)


def test_free_mask_is_elementwise():
    bank = FreeFilterbank(num_filters=4)
    mask, encoding = torch.rand(2, 3, 4, 5), torch.randn(2, 4, 5)
    assert torch.equal(bank.apply_mask(mask, encoding)[1, 2], mask[1, 2] * encoding[1])
    assert bank.features(encoding) is encoding


@pytest.mark.parametrize(("kernel_size", "stride"), [(256, 64), (256, 128), (64, 10), (32, 16), (2, 1)])
def test_stft_matches_torch(kernel_size, stride):
    bank = STFTFilterbank(kernel_size, stride)
    waveform = torch.randn(2, 10 * kernel_size)
    window = torch.hann_window(kernel_size).sqrt()
    expected = torch.stft(waveform, kernel_size, stride, window=window, center=False, return_complex=True)
    expected *= 2 / (kernel_size * kernel_size / stride) ** 0.5
    # The filterbank scales the two real bins so that the transform is a tight frame.
    expected[:, [0, -1]] /= 2**0.5
    real, imaginary = bank.encode(waveform).chunk(2, dim=1)
    torch.testing.assert_close(torch.complex(real, imaginary), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel_size", "stride", "synthesis_size"),
    [
        *((256, 64, 0), (256, 128, 0), (300, 100, 0), (64, 30, 0), (64, 1, 0), (2, 1, 0)),
        *((512, 128, 256), (512, 192, 256), (64, 16, 17), (64, 32, 63), (10, 1, 2)),
    ],
)
def test_stft_reconstructs_every_sample(kernel_size, stride, synthesis_size):
    bank = STFTFilterbank(kernel_size, stride, synthesis_size=synthesis_size)
    for num_samples in (1, stride, kernel_size - 1, kernel_size + 1, 1001):
        waveform = torch.randn(2, num_samples)
        left, right = bank.padding_for(num_samples)
        decoded = bank.decode(bank.encode(torch.nn.functional.pad(waveform, (left, right))).unsqueeze(1))
        torch.testing.assert_close(decoded[:, 0, left : left + num_samples], waveform, rtol=0, atol=1e-5)


def test_stft_features_are_compressed_magnitudes():
    encoding = torch.randn(2, 2 * 17, 5)
    magnitude = torch.complex(*encoding.chunk(2, dim=1)).abs()
    for compression in (1.0, 0.3):
        features = STFTFilterbank(32, 16, compression).features(encoding)
        torch.testing.assert_close(features, magnitude**compression, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("compression", [0.3, 1.0])
def test_stft_features_of_silence_have_a_finite_gradient(compression):
    encoding = torch.zeros(1, 34, 3, requires_grad=True)
    features = STFTFilterbank(32, 16, compression).features(encoding)
    features.sum().backward()
    assert features.isfinite().all() and encoding.grad is not None and encoding.grad.isfinite().all()


def test_stft_mask_scales_both_parts_alike():
    bank = STFTFilterbank(32, 16)
    encoding, mask = torch.randn(2, 34, 5), torch.rand(2, 3, 17, 5)
    masked = torch.complex(*bank.apply_mask(mask, encoding).chunk(2, dim=2))
    torch.testing.assert_close(masked, mask * torch.complex(*encoding.chunk(2, dim=1)).unsqueeze(1))
