from commandbus.testing.conformance.scheduling import SchedulingSuite


class TestScheduling(SchedulingSuite):
    pass
