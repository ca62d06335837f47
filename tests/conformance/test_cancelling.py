from commandbus.testing.conformance.cancelling import CancellingSuite


class TestCancelling(CancellingSuite):
    pass
