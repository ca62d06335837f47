"""All seeded bugs: importing this registers them."""

from tests.chaos import (
    bugs,
    bugs_of_conduct,
    bugs_of_operators,
    bugs_of_outages,
    bugs_of_recorders,
    bugs_of_shortage,
)
from tests.chaos.seeded import (
    BUGS,
    EXPERIMENTS,
    KINDS,
    NEED_FREEZES,
    NO_RECORDER,
    PLANS,
    PROMISES,
    READERS,
    has_recorders,
    place_of,
    switch_on,
)

__all__ = [
    "BUGS",
    "EXPERIMENTS",
    "KINDS",
    "NEED_FREEZES",
    "NO_RECORDER",
    "PLANS",
    "PROMISES",
    "READERS",
    "bugs",
    "bugs_of_conduct",
    "bugs_of_operators",
    "bugs_of_outages",
    "bugs_of_recorders",
    "bugs_of_shortage",
    "has_recorders",
    "place_of",
    "switch_on",
]
