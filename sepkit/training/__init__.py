"""How models are trained: the generic task, separation, callbacks, and `train`."""

import warnings

# torchmetrics 0.11.4, as far as asteroid lets it go, imports pkg_resources: nothing that a user can mend.
warnings.filterwarnings("ignore", message="pkg_resources is deprecated", category=UserWarning)
