from commandbus.testing.conformance.process_operators import (
    CompensationSuite,
    ProcessTimeSuite,
    SignalSuite,
)


class TestCompensation(CompensationSuite):
    pass


class TestProcessTime(ProcessTimeSuite):
    pass


class TestSignals(SignalSuite):
    pass
