"""Outputs: what an earlier call wrote, whole or not, and samples that a format cannot hold."""

import builtins
import errno
import io
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.files import file_digest, write_json
from sepkit.inference import Separator, separate_files
from sepkit.inference.batch.outputs import write_outputs
from sepkit.inference.options import OutputOptions
from sepkit.inference.selection import Selection
from sepkit.inference.separated import Separated
from sepkit.models import build_model
from tests.inference.folders import files_of, record
from tests.tiny_models import RECURRENT


def test_an_estimate_that_was_cut_or_emptied_is_separated_again(tmp_path, separator):
    record(tmp_path / "in" / "talk.wav")
    separate_files([tmp_path / "in"], separator, tmp_path / "out")
    whole = (tmp_path / "out" / "talk_s2.wav").read_bytes()
    for content in (b"", whole[:-5], None):
        if content is None:
            (tmp_path / "out" / "talk_s2.wav").unlink()
        else:
            (tmp_path / "out" / "talk_s2.wav").write_bytes(content)
        report = separate_files([tmp_path / "in"], separator, tmp_path / "out")
        assert (report.separated, report.already_done) == (1, 0)
        assert (tmp_path / "out" / "talk_s2.wav").read_bytes() == whole


def test_verify_looks_at_the_bytes_of_recordings_and_estimates(tmp_path, separator):
    record(tmp_path / "in" / "talk.wav")
    recording, estimate = tmp_path / "in" / "talk.wav", tmp_path / "out" / "talk_s1.wav"
    separate_files([recording], separator, tmp_path / "out")
    told = json.loads((tmp_path / "out" / "talk.json").read_text())
    assert told["input_sha256"] == file_digest(recording)
    assert told["files"]["talk_s1.wav"] == {"bytes": estimate.stat().st_size, "sha256": file_digest(estimate)}
    for path in (estimate, recording):
        state, data = path.stat(), bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        assert separate_files([recording], separator, tmp_path / "out").already_done == 1
        verified = separate_files([recording], separator, tmp_path / "out", OutputOptions(verify=True))
        assert (verified.separated, verified.already_done) == (1, 0)
    assert separate_files([recording], separator, tmp_path / "out", OutputOptions(verify=True)).already_done == 1


def test_what_an_earlier_json_names_is_never_looked_for_elsewhere(tmp_path, separator):
    record(tmp_path / "in" / "talk.wav")
    (tmp_path / "talk_s9.wav").write_text("mine")
    separate_files([tmp_path / "in"], separator, tmp_path / "out")
    file = tmp_path / "out" / "talk.json"
    for names in (["../talk_s9.wav"], ["talk_s1.wav\0"], [3], "talk", None, ["talk_s1.wav"] * 3):
        write_json(file, json.loads(file.read_text()) | {"estimates": names, "input_bytes": 0})
        assert separate_files([tmp_path / "in"], separator, tmp_path / "out").separated == 1
    assert (tmp_path / "talk_s9.wav").read_text() == "mine"


def test_what_changed_is_separated_again(tmp_path, separator):
    record(tmp_path / "x.wav")
    arguments = ([tmp_path / "x.wav"], separator, tmp_path / "out")
    separate_files(*arguments)
    assert separate_files(*arguments).already_done == 1
    assert separate_files(*arguments, OutputOptions(channel=0)).separated == 1
    other = Separator(build_model(RECURRENT))
    assert separate_files([tmp_path / "x.wav"], other, tmp_path / "out").separated == 1
    record(tmp_path / "x.wav", 500)
    assert separate_files([tmp_path / "x.wav"], other, tmp_path / "out").separated == 1


@pytest.mark.parametrize("suffix", ["wav", "flac"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_stops_with_one_line_and_leaves_nothing_half(suffix, number, tmp_path, separator, monkeypatch):
    record(tmp_path / "in" / "a.wav")
    real = builtins.open

    class Full(io.FileIO):
        def write(self, data):
            raise OSError(number, os.strerror(number))

    def opened(path, mode="r", *arguments, **options):
        is_output = "w" in mode and str(path).endswith(suffix)
        return Full(path, "wb+") if is_output else real(path, mode, *arguments, **options)

    monkeypatch.setattr(builtins, "open", opened)
    with pytest.raises(UserError, match="run the same command again"):
        separate_files([tmp_path / "in"], separator, tmp_path / "out", OutputOptions(format=suffix))
    monkeypatch.undo()
    assert files_of(tmp_path / "out") == []
    assert separate_files([tmp_path / "in"], separator, tmp_path / "out", OutputOptions(format=suffix)).separated == 1


def test_nothing_clips(tmp_path, separator, capsys):
    record(tmp_path / "loud.wav", level=50.0)
    record(tmp_path / "quiet.wav", level=0.01)
    inputs = [tmp_path / "loud.wav", tmp_path / "quiet.wav"]
    separate_files(inputs, separator, tmp_path / "out", OutputOptions(subtype="PCM_16"))
    assert audio.info(tmp_path / "out" / "loud_s1.wav").subtype == "FLOAT"
    assert audio.info(tmp_path / "out" / "quiet_s1.wav").subtype == "PCM_16"
    assert np.abs(audio.read(tmp_path / "out" / "loud_s1.wav")).max() > 1
    assert "would clip" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "written"), [("PCM_16", "PCM_16"), ("PCM_U8", "PCM_16"), ("PCM_24", "FLOAT"), ("FLOAT", "FLOAT")]
)
def test_estimates_have_the_bits_of_the_recording(kind, written, tmp_path, separator, capsys):
    record(tmp_path / "float.wav", level=0.1)
    soundfile.write(tmp_path / "in.wav", audio.read(tmp_path / "float.wav"), 8000, subtype=kind)
    separate_files([tmp_path / "in.wav"], separator, tmp_path / "out")
    separate_files([tmp_path / "in.wav"], separator, tmp_path / "float", OutputOptions(subtype="FLOAT"))
    assert audio.info(tmp_path / "out" / "in_s1.wav").subtype == written
    exact, rounded = (audio.read(tmp_path / folder / "in_s1.wav") for folder in ("float", "out"))
    assert np.abs(exact - rounded).max() <= (0.5 / 32768 + 1e-7 if written == "PCM_16" else 0)
    assert capsys.readouterr().err == ""


def test_what_would_clip_is_float_without_a_word_where_nothing_was_asked_for(tmp_path, separator, capsys, monkeypatch):
    soundfile.write(tmp_path / "in.wav", np.random.default_rng(0).uniform(-0.9, 0.9, 4000), 8000, subtype="PCM_16")
    scaled = Selection.scaled
    monkeypatch.setattr(Selection, "scaled", lambda selection, factor: scaled(selection, 50 * factor))
    separate_files([tmp_path / "in.wav"], separator, tmp_path / "out")
    assert [audio.info(tmp_path / "out" / f"in_s{k}.wav").subtype for k in (1, 2)] == ["FLOAT"] * 2
    assert max(np.abs(audio.read(tmp_path / "out" / f"in_s{k}.wav")).max() for k in (1, 2)) > 1
    assert capsys.readouterr().err == ""


def test_flac_holds_what_does_not_clip(tmp_path, chunked, capsys):
    for name, seconds, level in (("quiet", 0.5, 0.01), ("long", 2, 0.01), ("loud", 0.5, 30.0), ("long_loud", 2, 30.0)):
        record(tmp_path / "in" / f"{name}.wav", round(seconds * 8000), level=level)
    separate_files([tmp_path / "in"], chunked, tmp_path / "out", OutputOptions(format="flac"))
    names = [name for name in files_of(tmp_path / "out") if "_s" in name]
    loud = [f"{name}_s{k}.wav" for name in ("long_loud", "loud") for k in (1, 2)]
    assert names == sorted(loud + [f"{name}_s{k}.flac" for name in ("long", "quiet") for k in (1, 2)])
    assert capsys.readouterr().err.count("would clip") == 2
    assert json.loads((tmp_path / "out" / "loud.json").read_text())["peak"] > 1
    assert separate_files([tmp_path / "in"], chunked, tmp_path / "out", OutputOptions(format="flac")).already_done == 4
    with pytest.raises(UserError, match="flac does not support"):
        separate_files([tmp_path / "in"], chunked, tmp_path / "out", OutputOptions(format="flac", subtype="FLOAT"))


def test_who_is_no_speaker_has_no_turns(tmp_path):
    record(tmp_path / "x.wav")
    noise = 0.1 * np.random.default_rng(0).standard_normal((2, 8000)).astype(np.float32)
    estimates = SimpleNamespace(shape=noise.shape, blocks=lambda: iter([noise]))
    separated = Separated(estimates, 8000, Selection(np.ones(2), np.arange(2), np.array([True, False])))
    options = OutputOptions(rttm=True)
    write_outputs(tmp_path / "x", separated, options, {"input": str(tmp_path / "x.wav")}, "PCM_16", recording="x")
    (line,) = (tmp_path / "x.rttm").read_text().splitlines()
    assert line == "SPEAKER x 1 0.000 1.000 <NA> <NA> s1 <NA> <NA>"
