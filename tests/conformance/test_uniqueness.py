from commandbus.testing.conformance.uniqueness import UniquenessSuite, UniqueOptionsSuite


class TestUniqueness(UniquenessSuite):
    pass


class TestUniqueOptions(UniqueOptionsSuite):
    pass
