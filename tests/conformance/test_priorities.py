from commandbus.testing.conformance.priorities import AgeingSuite, PrioritiesSuite


class TestPriorities(PrioritiesSuite):
    pass


class TestAgeing(AgeingSuite):
    pass
