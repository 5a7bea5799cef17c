import io

import numpy as np
import pytest
import soundfile

from sepkit.data import audio
from sepkit.data.audio import write_blocks
from sepkit.data.resampling import StreamResampler
from sepkit.errors import UserError
from tests.complaint import complaint


def noise(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-0.9, 0.9, shape).astype(np.float32)


def pieces(signal, sizes):
    """The signal (..., T) cut into pieces of these sizes, again and again."""
    start, number = 0, 0
    while start < signal.shape[-1]:
        size = sizes[number % len(sizes)]
        yield signal[..., start : start + size]
        start, number = start + size, number + 1


@pytest.mark.parametrize(
    ("from_rate", "to_rate"),
    [(44100, 8000), (8000, 44100), (11025, 8000), (7999, 8000), (8000, 22050), (48000, 8000), (8000, 8000)],
)
@pytest.mark.parametrize("num_samples", [1, 2, 15, 16, 17, 1000, 20011])
@pytest.mark.parametrize("channels", [1, 2])
def test_blocks_resample_as_the_whole(from_rate, to_rate, num_samples, channels):
    signal = noise(channels, num_samples)
    stream = StreamResampler(from_rate, to_rate, channels)
    out = [stream.push(piece) for piece in pieces(signal, [1, 700, 0, 3001])] + [stream.finish()]
    np.testing.assert_array_equal(np.concatenate(out, axis=-1), audio.resample(signal, from_rate, to_rate))


@pytest.mark.parametrize(("suffix", "subtype"), [(".wav", "FLOAT"), (".wav", "PCM_16"), (".flac", "PCM_16")])
@pytest.mark.parametrize("num_samples", [1, 2, 15, 16, 17, 9001])
def test_blocks_are_written_as_the_whole(tmp_path, suffix, subtype, num_samples):
    signal = 1.2 * noise(num_samples)
    whole = audio.write(tmp_path / f"whole{suffix}", signal, 11025, subtype=subtype)
    with write_blocks(tmp_path / "sub" / f"blocks{suffix}", 11025, num_samples, subtype) as writer:
        for piece in pieces(signal, [1, 1000, 4096]):
            writer.write(piece)
    blocks = tmp_path / "sub" / f"blocks{suffix}"
    assert audio.info(blocks) == audio.info(whole)
    np.testing.assert_array_equal(audio.read(blocks), audio.read(whole))
    if suffix == ".wav":
        assert blocks.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("block", [noise(4), noise(6), np.full(5, np.nan, np.float32)])
def test_a_file_is_complete_or_absent(tmp_path, block):
    with pytest.raises(ValueError, match=r"fewer|more|finite"), write_blocks(tmp_path / "x.wav", 8000, 5) as writer:
        writer.write(block)
    assert not list(tmp_path.iterdir())


def test_what_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(UserError, match="flac"), write_blocks(tmp_path / "x.wav", 48000, 2**30):
        pass
    with pytest.raises(ValueError, match="PCM_16"), write_blocks(tmp_path / "x.flac", 8000, 5, "FLOAT"):
        pass


@pytest.mark.parametrize(
    ("suffix", "subtype"),
    [(".wav", "PCM_U8"), (".wav", "PCM_24"), (".wav", "FLOAT"), (".flac", "PCM_16"), (".ogg", "VORBIS")],
)
def test_blocks_are_read_as_the_whole(tmp_path, suffix, subtype):
    path = tmp_path / f"x{suffix}"
    soundfile.write(path, noise(2, 5001).T, 11025, subtype=subtype)
    for channel in (None, 1):
        blocks = list(audio.read_blocks(path, 1000, channel))
        assert [len(block) for block in blocks] == [1000] * 5 + [1]
        np.testing.assert_array_equal(np.concatenate(blocks), audio.read(path, channel=channel))


def test_a_bad_block_is_named_when_it_is_reached(tmp_path):
    signal = noise(3000)
    signal[2500] = np.nan
    soundfile.write(tmp_path / "nan.wav", signal, 8000, subtype="FLOAT")
    blocks = audio.read_blocks(tmp_path / "nan.wav", 1000)
    assert len(next(blocks)) == len(next(blocks)) == 1000
    complaint(lambda: next(blocks), r"nan.wav: contains samples that are not finite")
    soundfile.write(tmp_path / "x.flac", noise(40000), 8000)
    data = (tmp_path / "x.flac").read_bytes()
    (tmp_path / "cut.flac").write_bytes(data[: len(data) // 2])
    complaint(lambda: list(audio.read_blocks(tmp_path / "cut.flac", 1000)), r"cut.flac: damaged or truncated")
    complaint(lambda: next(audio.read_blocks(tmp_path / "x.flac", 1000, channel=1)), "channel 1 was asked for")


@pytest.mark.parametrize("as_file", [True, False])
def test_all_channels_are_decoded(tmp_path, as_file):
    path = audio.write(tmp_path / "x.wav", noise(2, 500), 11025)
    data = path.read_bytes()
    waveform, rate = audio.decode(io.BytesIO(data) if as_file else path)
    assert rate == 11025
    np.testing.assert_array_equal(waveform[1], audio.read(path, channel=1))


@pytest.mark.parametrize(("data", "word"), [(b"", "cannot be read"), (b"RIFFnonsense", "cannot be read")])
def test_bytes_that_are_no_audio(data, word):
    complaint(lambda: audio.decode(io.BytesIO(data)), word)
