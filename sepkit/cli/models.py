"""`sepkit models`: what a MODEL may be, and what one of them is."""

from __future__ import annotations

MODEL_FORMS = {
    "EXP or EXP/model": "a folder that `sepkit train --out EXP` wrote, or a file in it",
    "boxed_8k": "shipped with sepkit; the default",
    "hf:OWNER/NAME": "a sepkit model on the Hugging Face hub, fetched once; @REVISION can follow",
    "asteroid:FILE or asteroid:OWNER/NAME": "a ConvTasNet, DPRNNTasNet, SuDORMRFNet or SuDORMRFImprovedNet of asteroid",
    "speechbrain:FOLDER or speechbrain:OWNER/NAME": "a SepFormer of speechbrain",
    "FILE.onnx": "written by `sepkit export`; separates and evaluates only",
}
"""What MODEL can be -> what that is."""


def main(*, model: str | None = None) -> None:
    """List the models that can be named and the maskers that can be trained, or describe one model.

    Args:
        model: describe this MODEL: its configuration, size, sample rate, and what was noted when it was saved

    Raises:
        UserError: no such model.
    """
    print(_describe(model) if model is not None else _overview())


def _overview() -> str:
    lines = ["A MODEL (--model, --init-from) is one of:"]
    lines += [f"  {form:<45} {meaning}" for form, meaning in MODEL_FORMS.items()]
    lines += ["", *_shipped(), "", "Models that can be trained (sepkit train --config NAME):"]
    return "\n".join(lines + _configurations())


def _shipped() -> list[str]:
    from sepkit.models.checkpoints import read_description
    from sepkit.models.shipped import DEFAULT_MODEL, shipped_models

    rows = []
    for name, folder in shipped_models().items():
        description = read_description(folder)
        what = f"{description['model']['hypotheses']} estimates at {description['sample_rate']} Hz"
        rows.append(f"  {name:<23} {what}{', the default' if name == DEFAULT_MODEL else ''}")
    return ["Models that ship with sepkit:", *rows] if rows else ["No trained model ships with this version."]


def _configurations() -> list[str]:
    from sepkit.cli._configuration import conf_folder

    rows = []
    for path in sorted((conf_folder() / "model").glob("*.yaml")):
        comment = path.read_text(encoding="utf-8").splitlines()[0]
        rows.append(f"  {path.stem:<20} {comment.lstrip('# ') if comment.startswith('#') else ''}".rstrip())
    return rows


def _describe(model: str) -> str:
    import yaml

    from sepkit.config import to_dict
    from sepkit.models import load_pretrained, model_folder
    from sepkit.models.checkpoints import read_description
    from sepkit.models.onnx import OnnxModel, is_onnx

    if is_onnx(model):
        description = OnnxModel(model).description
    elif (folder := model_folder(model)) is not None:
        load_pretrained(folder)
        description = read_description(folder)
    else:
        loaded = load_pretrained(model)
        description = {
            "sample_rate": loaded.sample_rate,
            "parameters": sum(parameter.numel() for parameter in loaded.parameters()),
            "model": to_dict(loaded.config) if loaded.config else None,
        }
    return yaml.safe_dump(description, sort_keys=False, allow_unicode=True).rstrip()
