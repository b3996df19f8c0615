"""Random numbers for jitter, independent of `random`: seeding that, or a fork, must not make processes wait alike."""

import random
from typing import Final

CHANCE: Final = random.SystemRandom()
