"""Train models: the generic task, separation, callbacks, and `train`."""

import warnings

# torchmetrics 0.11.4, the latest that asteroid allows, imports pkg_resources; users cannot change that.
warnings.filterwarnings("ignore", message="pkg_resources is deprecated", category=UserWarning)
