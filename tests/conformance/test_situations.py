from commandbus.testing.conformance.situations import SituationsSuite


class TestSituations(SituationsSuite):
    pass
