from commandbus.testing.conformance.causation import CausationSuite


class TestCausation(CausationSuite):
    pass
