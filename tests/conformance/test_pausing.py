from commandbus.testing.conformance.pausing import PausingSuite


class TestPausing(PausingSuite):
    pass
