"""Experiments of the annealed VI paper, figures 1 to 7: annealing keeps variational inference from losing a mode.

The theory is in `sepkit.annealing`, the flow in `sepkit.models.coupling`. The experiments run cell by cell.

Source: Fogliani, Loureiro and Gabrié, "Annealing in variational inference mitigates mode collapse".
"""
