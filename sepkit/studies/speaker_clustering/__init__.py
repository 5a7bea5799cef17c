"""Speaker encoders, trained by contrast (MoCo, MiCE) or on known speakers, and what measures them.

`config.py` describes a training, `data.py` makes views of segments of speech, and collections with known speakers,
`losses.py` has the losses, and `task.py` trains. `measures.py` scores and draws clusters of a collection by each rule
of an encoder. What `sepkit cluster` and separation use is in `sepkit.inference.diarization`.

Source: Tsai, Li and Zhu, "MiCE: Mixture of Contrastive Experts for Unsupervised Image Clustering", ICLR 2021.
"""
