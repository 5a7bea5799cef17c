"""Voices without labels: encoders trained by contrast (MoCo, MiCE), and recordings clustered by who speaks.

`config.py` describes a training, `data.py` makes views of stretches of speech, `task.py` trains, `measures.py` turns
an encoder into clusters by each of its rules, `cluster.py` is `sepkit cluster`, and `collections.py` makes collections
with known speakers. What separation uses of it stands in `sepkit.inference.voices`.

Source: Tsai, Li and Zhu, "MiCE: Mixture of Contrastive Experts for Unsupervised Image Clustering", ICLR 2021.
"""
