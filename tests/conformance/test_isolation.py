from commandbus.testing.conformance.isolation import IsolationSuite


class TestIsolation(IsolationSuite):
    pass
