from commandbus.testing.conformance.waiting import WaitingSuite


class TestWaiting(WaitingSuite):
    pass
