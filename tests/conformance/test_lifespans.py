from commandbus.testing.conformance.lifespans import LifespansSuite


class TestLifespans(LifespansSuite):
    pass
