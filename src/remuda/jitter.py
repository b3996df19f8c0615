"""Chance of our own, for jitter: seeding `random`, or a fork, must not make processes wait alike."""

import random
from typing import Final

CHANCE: Final = random.SystemRandom()
