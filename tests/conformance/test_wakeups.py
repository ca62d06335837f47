from commandbus.testing.conformance.wakeups import WakeupsSuite


class TestWakeups(WakeupsSuite):
    pass
