from commandbus.testing.conformance.stopping import StoppingSuite


class TestStopping(StoppingSuite):
    pass
