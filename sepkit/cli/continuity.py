"""`sepkit continuity`: measure whether speakers keep their channels."""

from __future__ import annotations

from pathlib import Path


def main(*, manifest: str, estimates: str, out: str, chunk_seconds: float = 5.0) -> Path:
    """Measure how often the estimates of long recordings change speakers, and what that costs.

    Writes continuity.json and continuity.csv.

    Args:
        manifest: of the recordings, with their sources (test.jsonl)
        estimates: folder that `sepkit separate` wrote
        out: folder of the results
        chunk_seconds: length of the chunks that are compared
    """
    from sepkit.evaluation.continuity import measure_continuity

    for found in measure_continuity(manifest, estimates, out, chunk_seconds)["mixtures"]:
        counted = found["n_chunks"] - found["n_excluded"]
        print(f"{found['id']}: all speak in {found['n_chunks']} chunks, {counted} of them separated by 3 dB or more")
        if counted:
            per_minute, share = found["changes_per_minute"], 100 * found["minority_share"]
            print(f"  {found['changes']} changes, {per_minute:.2f} a minute; {share:.1f} % on the minority assignment")
        if found["n_chunks"]:
            best, fixed = found["oracle_si_sdri_db"], found["fixed_si_sdri_db"]
            print(f"  SI-SDRi {best:.2f} dB with the best assignment of each chunk, {fixed:.2f} dB with one for all")
    return Path(out)
