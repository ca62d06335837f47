from commandbus.testing.conformance.recorded_steps import RecordedStepSuite


class TestRecordedSteps(RecordedStepSuite):
    pass
