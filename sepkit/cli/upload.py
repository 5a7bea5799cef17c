"""`sepkit upload`: a model and its card to the Hugging Face hub."""


def main(
    model: str,
    *,
    repo: str,
    license: str,
    corpora: list[str] | None = None,
    summary: list[str] | None = None,
    limits: str = "",
    credit: str = "",
    private: bool = False,
    dry_run: bool = False,
) -> str:
    """Upload a model with a card, from where `--model hf:OWNER/NAME` fetches it.

    Uploads the weights (model.safetensors, model.onnx), model.yaml, quality.yaml where there is one, and README.md, the
    card. Log in first (`hf auth login`, or the variable HF_TOKEN).

    Example:
        sepkit upload exp/tasnet --repo OWNER/NAME --license cc-by-4.0 --dry-run

    Args:
        model: MODEL, a folder that `sepkit train` wrote (EXP, EXP/model)
        repo: repository on the hub; created if it does not exist
        license: license of the weights, for the card: cc-by-4.0 ...; some corpora do not allow every license
        corpora: training corpora for the card, each with its license and source
        summary: summary.json files of `sepkit evaluate`, for the card
        limits: uses that the model is not suited for, for the card (default: limits of every separator)
        credit: authors and projects to credit, for the card
        private: make the repository private
        dry_run: print the card and upload nothing
    """
    from sepkit.errors import UserError
    from sepkit.models import model_folder
    from sepkit.models.published import hub
    from sepkit.models.published.card import model_card

    folder = model_folder(model)
    if folder is None:
        raise UserError(f"{model}: is not of sepkit's own; expected a folder that `sepkit train` wrote")
    card = model_card(
        folder, license=license, corpora=corpora or [], summaries=summary or [], name=repo, limits=limits, credit=credit
    )
    return card if dry_run else hub.upload(folder, card, repo, private)
