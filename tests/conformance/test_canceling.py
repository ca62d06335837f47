from commandbus.testing.conformance.canceling import CancelingSuite


class TestCanceling(CancelingSuite):
    pass
