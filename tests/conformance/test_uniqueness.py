from commandbus.testing.conformance.uniqueness import UniquenessSuite


class TestUniqueness(UniquenessSuite):
    pass
