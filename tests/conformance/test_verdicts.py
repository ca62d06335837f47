from commandbus.testing.conformance.verdicts import VerdictsSuite


class TestVerdicts(VerdictsSuite):
    pass
