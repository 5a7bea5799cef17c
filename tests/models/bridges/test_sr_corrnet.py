"""Files of SR-CorrNet: what is read, what is refused, and what becomes of the level and the sign of its outputs."""

import numpy as np
import pytest
import torch
import yaml

from sepkit.inference import Separator
from sepkit.models import load_pretrained
from sepkit.models.bridges import from_sr_corrnet
from tests.complaint import complaint
from tests.published import sr_corrnet_description, sr_corrnet_weights


def write(folder, weights, description):
    torch.save(weights, folder / "model.pt")
    (folder / "config.yaml").write_text(yaml.safe_dump(description))
    return folder


OLDER = {"encoder.": "input_layer.", "filter_estim_aux.": "mask_estim_aux.", "filter_estim.": "mask_estim."}
OLDER |= {".freq_block.": ".frame_wise_block.", ".time_block.": ".freq_wise_block.", ".ca.": ".cs."}
OLDER |= {".block.block.sa.": ".block.block.ega."}


def older_name(name: str) -> str:
    for new, before in OLDER.items():
        if new in name if new[0] == "." else name.startswith(new):
            name = name.replace(new, before, 1)
    return f"_orig_mod.{name}"


SYNTHESIS = "dataset.synthesis_config"


@pytest.mark.parametrize("counts", [False, True])
def test_layouts_of_one_model(counts, tmp_path):
    """As published, as training saves it, and compiled, under the names of before and with totals of operations."""
    weights = sr_corrnet_weights(3, counts)
    write(tmp_path, weights, sr_corrnet_description(3, counts))
    model = load_pretrained(f"sr-corrnet:{tmp_path}")
    expected = model.state_dict()
    # Four times the 4 s of its training, and a level of the mixture's.
    needs = {"whole_seconds": 16.0, "chunk_seconds": 16.0, "overlap_seconds": 8.0, "levels": "mixture"}
    assert model.info == {"needs": needs} and model.counts_speakers == counts
    older = {older_name(name): tensor for name, tensor in weights.items()}
    totals = {"total_ops": torch.zeros(1), "_orig_mod.encoder.total_params": torch.zeros(1)}
    for layout in ({"epoch": 3, "model_state_dict": weights}, older, {"model_state_dict": older | totals}):
        write(tmp_path, layout, sr_corrnet_description(3, counts))
        found = from_sr_corrnet(tmp_path / "model.pt").state_dict()
        assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.d_model", 16, "config.model.RoPE.d_model is 8, expected 16"),
        ("model.d_model", 65537, "config.model.d_model is 65537, expected a whole number from 1 to 65536"),
        ("model.N_Enc", 1001, "config.model.N_Enc is 1001, expected a whole number from 1 to 1000"),
        ("model.N_Dec", 1001, "config.model.N_Dec is 1001, expected a whole number from 1 to 1000"),
        ("model.spk_split.fixed.max_n_spks", 101, "max_n_spks is 101, expected a whole number from 1 to 100"),
        ("model.N_Dec", 0, "config.model.N_Dec is 0"),
        ("model.N_Dec", 3, "dec_block.2.freq_block.block.ffn_1.layernorm.weight is missing"),
        ("model.N_Enc", 2, "enc_block.1.freq_block.block.ffn_1.layernorm.weight is missing"),
        ("model.is_var_spks", "yes", "config.model.is_var_spks is 'yes', expected true or false"),
        ("model.is_var_spks", True, "spk_split.spk_split.0.bias is unexpected"),
        ("model.taps_frame", [1, 0], "config.model.input_embedding is"),
        ("model.input_embedding.num_mics", 2, "config.model.input_embedding is"),
        ("model.input_embedding.kernel_sizes", [5, 3], "config.model.input_embedding is"),
        ("model.ref_ch", 1, "config.model.ref_ch is 1, expected 0"),
        ("model.apply_pos_enc", False, "config.model.apply_pos_enc is False, expected True"),
        ("model.multi_path_block.channel_module.d_hidden", 7, "config.model.multi_path_block.channel_module is"),
        ("model.cross_spk.dropout_rate", 0.1, "config.model.cross_spk.dropout_rate is 0.1, expected 0"),
        ("model.cross_spk.d_hidden", 11, "dec_cs.0.block.block.ffn.net.0.weight has shape (20, 8), expected (22, 8)"),
        ("model.spk_split.fixed.max_n_spks", 3, "spk_split.spk_split.0.weight has shape (64, 8), expected (96, 8)"),
        ("model", None, "config.model.d_model is None"),
        ("stft.frame_shift", 5, "config.stft.frame_shift is 5, expected a half or a quarter of 16"),
        (f"{SYNTHESIS}.max_len", 0, f"config.{SYNTHESIS}.max_len is 0, expected a whole number"),
        (f"{SYNTHESIS}.sampling_rate", "8k", "sampling_rate is '8k', expected a whole number"),
    ],
)
def test_other_descriptions(name, value, message, tmp_path):
    description = sr_corrnet_description()
    *above, last = name.split(".")
    place = description["config"]
    for part in above:
        place = place[part]
    place[last] = value
    write(tmp_path, sr_corrnet_weights(), description)
    assert message in complaint(lambda: from_sr_corrnet(tmp_path))


def test_other_files(tmp_path):
    assert "model.pt: no such file; expected a folder" in complaint(lambda: load_pretrained(f"sr-corrnet:{tmp_path}"))
    weights, description = sr_corrnet_weights(), sr_corrnet_description()
    less = {name: tensor for name, tensor in weights.items() if name != "layernorm.bias"}
    for content, message in [
        ([1], "found no mapping of names to tensors; expected a folder"),
        ({"model_state_dict": {"a": 1}}, "found no mapping of names to tensors"),
        (less, "layernorm.bias is missing; the weights are of another model"),
        (weights | {"more.bias": torch.zeros(1)}, "more.bias is unexpected; the weights are of another model"),
        (weights | {"layernorm.bias": torch.zeros(8).to_sparse()}, "layernorm.bias is no plain tensor"),
        (weights | {"layernorm.bias": torch.full((8,), torch.nan)}, "contains values that are not finite"),
    ]:
        write(tmp_path, content, description)
        assert message in complaint(lambda: from_sr_corrnet(tmp_path))
    torch.save(weights, tmp_path / "model.pt")
    for text, message in (("3", "config.model.d_model is None"), ("a: [", "not YAML")):
        (tmp_path / "config.yaml").write_text(text)
        assert message in complaint(lambda: from_sr_corrnet(tmp_path))
    (tmp_path / "config.yaml").unlink()
    assert "no config.yaml beside it" in complaint(lambda: from_sr_corrnet(tmp_path))


def test_from_the_hub(tmp_path, hub):
    asked = hub(write(tmp_path, sr_corrnet_weights(), sr_corrnet_description()))
    assert load_pretrained("sr-corrnet:shinuh/sr-corrnet-ss-1ch-wsj-fix-2spk@v1").hypotheses == 2
    assert (asked["name"], asked["revision"]) == ("shinuh/sr-corrnet-ss-1ch-wsj-fix-2spk", "v1")
    assert asked["allow_patterns"] == ["model.pt", "config.yaml"]


@pytest.fixture
def recording() -> np.ndarray:
    return 0.1 * np.random.default_rng(0).standard_normal(6000).astype(np.float32)


@pytest.mark.parametrize(
    "options",
    [{}, {"mixture_consistency": True}, {"whole_seconds": 0.0, "chunk_seconds": 0.3, "overlap_seconds": 0.1}],
    ids=["whole", "consistent", "chunks"],
)
def test_level_and_sign_of_the_outputs_do_not_matter(options, recording, tmp_path):
    """Published models are 87 times too loud and upside down, which a scale-invariant cost does not see."""
    write(tmp_path, sr_corrnet_weights(), sr_corrnet_description())
    plain, loud = from_sr_corrnet(tmp_path), from_sr_corrnet(tmp_path)
    loud.filterbank.apply_mask = lambda mask, encoding: -87 * mask
    mixture = torch.from_numpy(recording)[None]
    with torch.no_grad():
        torch.testing.assert_close(loud.estimates(mixture), -87 * plain.estimates(mixture), rtol=1e-4, atol=1e-3)
    expected, found = (Separator(model, **options).separate(recording, 8000).estimates for model in (plain, loud))
    assert np.abs(found - expected).max() < 1e-4 * np.abs(recording).max()
    if "mixture_consistency" in options:
        assert np.abs(found.sum(0) - recording).max() < 1e-6
    else:
        # Each is the mixture's projection on it: neither upside down nor stronger than the mixture.
        np.testing.assert_allclose(found @ recording, np.square(found).sum(1), rtol=1e-3)


@pytest.fixture
def counting() -> dict[str, torch.Tensor]:
    weights = sr_corrnet_weights(3, True)
    # Estimates that are alike would count as one.
    weights["spk_split.spk_query"] = 1000 * torch.eye(5, 8)[None]
    weights["spk_split.split.fusion.0.weight"] *= 5
    weights["filter_estim.mask.net.weight"] *= 60
    weights["filter_estim.mask.net.bias"] *= 0
    return weights


def test_a_separator_keeps_the_speakers_that_are_counted(recording, counting, tmp_path):
    weights = counting
    write(tmp_path, weights, sr_corrnet_description(3, True))
    with torch.no_grad():
        scores = from_sr_corrnet(tmp_path)(torch.from_numpy(recording)[None]).scores[0].tolist()
    assert scores == sorted(scores, reverse=True)
    bias = weights["spk_split.pres_linear.bias"]
    for count, above in ((0, scores[0] + 1), (1, (scores[0] + scores[1]) / 2), (3, scores[2] - 1)):
        write(tmp_path, weights | {"spk_split.pres_linear.bias": bias - above}, sr_corrnet_description(3, True))
        separator = Separator(from_sr_corrnet(tmp_path))
        assert separator.counts_speakers
        separated = separator.separate(recording, 8000, speakers="auto")
        assert separated.estimates.shape == (count, 6000)
        assert np.isfinite(separated.estimates).all() and separated.estimates.any(1).all()


@pytest.mark.parametrize(
    "options", [{}, {"views": 2}, {"whole_seconds": 0.0, "chunk_seconds": 0.15, "overlap_seconds": 0.05}], ids=str
)
def test_a_model_that_counts_is_told_how_many_speak(options, recording, counting, tmp_path):
    """It makes N estimates, whatever it would have counted, and none of them is silent."""
    write(tmp_path, counting, sr_corrnet_description(3, True))
    model = from_sr_corrnet(tmp_path)
    recording = recording[:2400]
    counted = 0

    # The first query is that of silence.
    def presence(attractors):
        return (0.5 + counted - torch.arange(5.0))[:, None].expand(len(attractors), -1, -1)

    model.masker.split.presence.forward = presence
    separator = Separator(model, levels="model", **options)
    assert separator.default_speakers == "auto"
    # At the level of a model whose training level is not known.
    mixture = torch.from_numpy(recording - recording.mean(dtype=np.float64))[None].float()
    level = float(mixture.std(correction=0)) / 0.05
    # It would count 0, 1 and 3, and is told another number, or the same.
    for counted, speakers in ((0, 2), (1, 1), (3, 1), (1, 3), (3, 2)):
        assert separator.separate(recording, 8000, speakers="auto").estimates.shape[0] == counted
        separated = separator.separate(recording, 8000, speakers=speakers)
        assert separated.estimates.shape == (speakers, 2400) and separated.estimates.any(1).all()
        assert separated.kept.tolist() == list(range(speakers)) and separated.scores.shape == (speakers,)
        if not options:
            with torch.no_grad():
                made = model(mixture / level, speakers=torch.tensor([speakers])).estimates[0, :speakers]
            expected = level * made.numpy()
            # The mixture is rounded to float32 once more on its way to that level.
            np.testing.assert_allclose(separated.estimates, expected, atol=1e-5 * np.abs(expected).max())
    assert complaint(lambda: separator.separate(recording, 8000, speakers=4)).startswith("speakers=4: this model")
