from commandbus.testing.conformance.checking import CheckingSuite


class TestChecking(CheckingSuite):
    pass
