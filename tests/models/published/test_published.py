"""Published checkpoints of SepReformer and TF-Locoformer: what is read, what is refused, and the command line."""

import dataclasses

import numpy as np
import pytest
import torch

from sepkit.cli.main import main
from sepkit.config import SepReformerConfig, TFLocoformerConfig
from sepkit.data import audio
from sepkit.models import build_model, load_pretrained, load_weights_into
from sepkit.models.bridges import from_sepreformer, from_tf_locoformer
from tests.complaint import complaint
from tests.published import Evil, sepreformer_checkpoint, sepreformer_weights, tf_locoformer_weights, tf_locoformer_yaml

DESCRIBED = "config: {model: {module_audio_enc: {stride: 2}}, dataset: {sampling_rate: 16000}}"
OUT = "audio_decoder.weight"


@pytest.fixture(scope="module")
def sepreformer_file(tmp_path_factory):
    # As in the authors' repository: configs.yaml is in the model's folder, weights two folders below.
    folder = tmp_path_factory.mktemp("SepReformer_Base_WSJ0")
    path = folder / "log" / "scratch_weights" / "epoch.0180.pth"
    path.parent.mkdir(parents=True)
    (folder / "configs.yaml").write_text(DESCRIBED)
    # Tools that count operations leave totals in a model.
    totals = {"total_ops": torch.zeros(1), "separator.total_params": torch.zeros(1)}
    torch.save(sepreformer_checkpoint(sepreformer_weights() | totals), path)
    return path


@pytest.fixture
def locoformer_file(tmp_path):
    torch.save(tf_locoformer_weights(), tmp_path / "valid.loss.ave_5best.pth")
    (tmp_path / "config.yaml").write_text(tf_locoformer_yaml())
    return tmp_path / "valid.loss.ave_5best.pth"


class TestSepReformer:
    def test_sizes_follow_from_the_weights_and_rate_and_stride_from_the_description(self, sepreformer_file, tmp_path):
        model = load_pretrained(f"sepreformer:{sepreformer_file}")
        assert (model.sample_rate, model.filterbank.stride, model.pad) == (16000, 2, "asteroid")
        assert model.info == {"needs": {"whole_seconds": 20.0, "chunk_seconds": 10.0, "levels": "mixture"}}
        assert model.config.masker == SepReformerConfig(8, 1, 2, kernel_size=5, max_distance=3)
        torch.save(sepreformer_checkpoint(sepreformer_weights(3)), tmp_path / "epoch.0001.pth")
        alone = from_sepreformer(tmp_path / "epoch.0001.pth")
        assert (alone.sample_rate, alone.filterbank.stride, alone.hypotheses) == (8000, 2, 3)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c, w: c.pop("model_state_dict"), "found no mapping of names to tensors; expected what SepReformer"),
            (lambda c, w: c.update(model_state_dict={"a": 3}), "found no mapping of names to tensors"),
            (lambda c, w: w.pop("out_layer.end_conv1x1.0.bias"), "out_layer.end_conv1x1.0.bias is missing"),
            (lambda c, w: w.pop("audio_encoder.conv1d.weight"), "no audio_encoder.conv1d.weight of a"),
            (lambda c, w: w.update(more=torch.zeros(1)), "more is unexpected"),
            (lambda c, w: w.update(more=torch.eye(2).to_sparse()), "more is no plain tensor of real"),
            (lambda c, w: w.update(more=torch.zeros(2, dtype=torch.complex64)), "more is no plain tensor of real"),
            (lambda c, w: w.update({OUT: torch.zeros(6, 1, 9)}), f"{OUT} has shape (6, 1, 9), expected (6, 1, 8)"),
            (lambda c, w: w[OUT].fill_(torch.nan), f"{OUT} contains values that are not finite"),
        ],
    )
    def test_other_layouts(self, change, message, tmp_path):
        checkpoint = sepreformer_checkpoint(sepreformer_weights())
        change(checkpoint, checkpoint["model_state_dict"])
        path = tmp_path / "epoch.0180.pth"
        torch.save(checkpoint, path)
        assert complaint(lambda: from_sepreformer(path)).startswith(f"{path}: {message}")

    @pytest.mark.parametrize(
        ("description", "message"),
        [
            ("config: {}", "no configuration of SepReformer"),
            ("3", "no configuration of SepReformer"),
            (DESCRIBED.replace("stride: 2", "stride: 0"), "config.model.module_audio_enc.stride is 0"),
            (DESCRIBED.replace("stride: 2", "stride: 9"), "model.filterbank.stride: found 9"),
            (DESCRIBED.replace("16000", "fast"), "config.dataset.sampling_rate is 'fast'"),
        ],
    )
    def test_other_descriptions(self, sepreformer_file, tmp_path, description, message):
        (tmp_path / "epoch.0180.pth").write_bytes(sepreformer_file.read_bytes())
        (tmp_path / "configs.yaml").write_text(description)
        assert message in complaint(lambda: from_sepreformer(tmp_path / "epoch.0180.pth"))

    def test_what_could_run_is_refused_and_does_not(self, tmp_path):
        evil = Evil(tmp_path / "ran")
        torch.save(sepreformer_checkpoint(sepreformer_weights()) | {"config": evil}, tmp_path / "evil.pth")
        assert "evil.pth: refused, it names" in complaint(lambda: from_sepreformer(tmp_path / "evil.pth"))
        torch.save(evil, tmp_path / "evil.pth")
        assert "evil.pth: refused, it names" in complaint(lambda: from_tf_locoformer(tmp_path / "evil.pth"))
        assert not (tmp_path / "ran").exists()

    def test_the_command_line(self, sepreformer_file, tmp_path, capsys):
        mixture = 0.1 * np.random.default_rng(0).standard_normal(9001).astype(np.float32)
        audio.write(tmp_path / "mixture.wav", mixture, 16000)
        out = tmp_path / "out"
        line = ["separate", str(tmp_path / "mixture.wav"), "--model", f"sepreformer:{sepreformer_file}"]
        assert main([*line, "--out", str(out)]) == 0
        found = [audio.read(out / f"mixture_s{k}.wav") for k in (1, 2)]
        assert all(len(estimate) == 9001 and np.abs(estimate).max() > 0 for estimate in found)
        capsys.readouterr()
        assert main([*line[:-1], f"sepreformer:{tmp_path / 'mixture.wav'}", "--out", str(out)]) == 2
        assert capsys.readouterr().err.startswith(f"sepkit separate: {tmp_path / 'mixture.wav'}: ")


class TestTFLocoformer:
    def test_sizes_are_those_of_the_description(self, locoformer_file):
        model = load_pretrained(f"tf-locoformer:{locoformer_file}")
        assert model.config is not None and (model.sample_rate, model.input_norm) == (8000, "mixture")
        assert model.info == {"needs": {"whole_seconds": 16.0, "chunk_seconds": 16.0, "overlap_seconds": 8.0}}
        text = locoformer_file.with_name("config.yaml").read_text()
        locoformer_file.with_name("config.yaml").write_text(text + "speech_segment: 24000\n")
        assert from_tf_locoformer(locoformer_file).info["needs"]["chunk_seconds"] == 12.0
        assert model.config.masker == TFLocoformerConfig(8, 2, 2, 8, 6, kernel_size=3, norm_groups=2)

    def test_its_transform_is_that_of_torch(self, locoformer_file):
        bank = from_tf_locoformer(locoformer_file).filterbank
        mixture = torch.randn(1, 80)
        expected = torch.stft(mixture, 16, 8, window=torch.hann_window(16), center=False, return_complex=True)
        found = bank.encode(mixture)
        torch.testing.assert_close(found, torch.cat([expected.real, expected.imag], dim=1), rtol=1e-5, atol=1e-5)
        back = bank.decode(found.unsqueeze(1))[:, 0]
        torch.testing.assert_close(back[:, 8:-8], mixture[:, 8:-8], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"norm_type": "layernorm"}, "separator_conf.norm_type is 'layernorm', expected 'rmsgroupnorm'"),
            ({"tf_order": "tf"}, "separator_conf.tf_order is 'tf', expected 'ft'"),
            ({"ffn_hidden_dim": [6, 7]}, "separator_conf.ffn_hidden_dim is [6, 7], expected two equal numbers"),
            ({"n_layers": "many"}, "separator_conf.n_layers is 'many', expected a whole number from 1 to 1000"),
            ({"emb_dim": 10**9}, "separator_conf.emb_dim is 1000000000, expected a whole number from 1 to 65536"),
            ({"dropout": 2}, "separator_conf.dropout is 2, expected 0 <= dropout < 1"),
            ({"n_heads": 3}, "model.masker.attention_dim: found 8, expected an even multiple of num_heads 3"),
            ({"n_layers": 3}, "separator.blocks.2.freq_path.ffn_norm.1.gamma is missing"),
            ({"n_layers": 1}, "separator.blocks.1.frame_path.attn.aggregate_heads.0.weight is unexpected"),
        ],
    )
    def test_other_options(self, options, message, locoformer_file):
        locoformer_file.with_name("config.yaml").write_text(tf_locoformer_yaml(**options))
        assert message in complaint(lambda: from_tf_locoformer(locoformer_file))

    @pytest.mark.parametrize(
        ("replaced", "by", "message"),
        [
            ("separator: tflocoformer", "separator: tfgridnet", "separator is not tflocoformer"),
            ("encoder: stft", "encoder: conv", "expected encoder and decoder stft of one size"),
            ("hop_length: 8", "hop_length: 8\n  win_length: 12", "encoder_conf.win_length is given"),
            ("seperator_conf", "", ""),
        ],
    )
    def test_other_descriptions(self, replaced, by, message, locoformer_file):
        file = locoformer_file.with_name("config.yaml")
        file.write_text(file.read_text().replace(replaced, by) if message else "- 3")
        assert (message or "separator is not tflocoformer") in complaint(lambda: from_tf_locoformer(locoformer_file))

    def test_missing_and_other_files(self, locoformer_file, sepreformer_file):
        assert "no such file" in complaint(lambda: load_pretrained("tf-locoformer:nowhere/valid.loss.ave.pth"))
        assert "found 'audio_encoder." in complaint(lambda: from_tf_locoformer(sepreformer_file))
        torch.save(tf_locoformer_weights() | {"decoder.x": torch.zeros(1)}, locoformer_file)
        assert "found 'decoder.x', which no TF-Locoformer has" in complaint(lambda: from_tf_locoformer(locoformer_file))
        locoformer_file.with_name("config.yaml").unlink()
        torch.save(tf_locoformer_weights(), locoformer_file)
        assert "no config.yaml beside it" in complaint(lambda: from_tf_locoformer(locoformer_file))

    def test_other_sizes_start_from_what_fits(self, locoformer_file):
        model = build_model(dataclasses.replace(from_tf_locoformer(locoformer_file).config, hypotheses=3))
        report = load_weights_into(model, f"tf-locoformer:{locoformer_file}")
        assert "masker.input.weight" in report.loaded and "masker.output.weight" not in report.loaded


@pytest.mark.parametrize("kind", ["sepreformer", "tf-locoformer"])
def test_repositories_that_hold_no_such_files_are_not_asked_for(kind):
    assert "somebody/model: no such file" in complaint(lambda: load_pretrained(f"{kind}:somebody/model"))
