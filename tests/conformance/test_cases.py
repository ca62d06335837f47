from commandbus.testing.conformance.cases import CasesSuite


class TestCases(CasesSuite):
    pass
