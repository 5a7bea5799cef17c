"""Types of numbers, with the bounds that a configuration, an option or a parameter of these types has.

`epochs: Count = 10` refuses 0, -1 and what is no whole number, in one line that names the field.
"""

import math
from typing import Annotated

from sepkit.errors import Bounds
from sepkit.limits import BATCH_SIZE, EPOCH_MIXTURES, LAYER_SIZE, PROCESSES, SAMPLE_RATES, SEED

Natural = Annotated[int, Bounds(ge=0)]
Count = Annotated[int, Bounds(ge=1)]
Counts = Annotated[list[int], Bounds(ge=1)]
Items = Annotated[int, Bounds(ge=1, le=EPOCH_MIXTURES)]
"""How many of what is held in memory, or made one by one: examples, samples, starts."""
Seed = Annotated[int, Bounds(ge=0, le=SEED)]
Size = Annotated[int, Bounds(ge=1, le=LAYER_SIZE)]
"""Width, length or number of the layers of a network."""
SizeOrNone = Annotated[int, Bounds(ge=0, le=LAYER_SIZE)]
"""A size; 0: there is no such layer."""
BatchSize = Annotated[int, Bounds(ge=1, le=BATCH_SIZE)]
Workers = Annotated[int, Bounds(ge=0, le=PROCESSES)]
SampleRate = Annotated[int, Bounds(ge=SAMPLE_RATES[0], le=SAMPLE_RATES[1], note=" Hz")]

Finite = Annotated[float, Bounds(gt=-math.inf, lt=math.inf)]
NotNegative = Annotated[float, Bounds(ge=0, lt=math.inf)]
Positive = Annotated[float, Bounds(gt=0, lt=math.inf)]
Share = Annotated[float, Bounds(ge=0, le=1)]
Dropout = Annotated[float, Bounds(ge=0, lt=1)]
"""A probability, or the decay of a moving average: 1 would leave nothing."""
Between = Annotated[float, Bounds(gt=0, lt=1)]
Range = Annotated[tuple[float, float], Bounds(gt=-math.inf, lt=math.inf)]
PositiveRange = Annotated[tuple[float, float], Bounds(gt=0, lt=math.inf)]
