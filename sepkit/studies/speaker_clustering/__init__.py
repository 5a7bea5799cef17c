"""Speakers without labels: encoders trained by contrast (MoCo, MiCE), and what measures them.

`config.py` describes a training, `data.py` makes views of segments of speech, `contrastive.py` has the losses, and
`task.py` trains. `collections.py` makes collections with known speakers, `measures.py` scores clusters of them by each
rule of an encoder, and `projection.py` fits a projection. What `sepkit cluster` and
separation use stands in `sepkit.inference.diarization`.

Source: Tsai, Li and Zhu, "MiCE: Mixture of Contrastive Experts for Unsupervised Image Clustering", ICLR 2021.
"""
