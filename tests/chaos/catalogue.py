"""All seeded bugs: importing this registers them."""

from tests.chaos import bugs, bugs_of_conduct
from tests.chaos.seeded import BUGS, KINDS, NEED_FREEZES, PROMISES, READERS, place_of, switch_on

__all__ = [
    "BUGS",
    "KINDS",
    "NEED_FREEZES",
    "PROMISES",
    "READERS",
    "bugs",
    "bugs_of_conduct",
    "place_of",
    "switch_on",
]
