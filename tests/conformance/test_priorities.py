from commandbus.testing.conformance.priorities import PrioritiesSuite


class TestPriorities(PrioritiesSuite):
    pass
