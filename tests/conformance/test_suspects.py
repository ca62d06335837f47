from commandbus.testing.conformance.suspects import SuspectsSuite


class TestSuspects(SuspectsSuite):
    pass
