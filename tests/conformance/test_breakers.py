from commandbus.testing.conformance.breakers import BreakerSuite


class TestBreaker(BreakerSuite):
    pass
