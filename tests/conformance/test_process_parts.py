from commandbus.testing.conformance.process_parts import ProcessBatchSuite, SubProcessSuite


class TestSubProcesses(SubProcessSuite):
    pass


class TestProcessBatches(ProcessBatchSuite):
    pass
