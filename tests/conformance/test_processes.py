from commandbus.testing.conformance.processes import ProcessSuite


class TestProcesses(ProcessSuite):
    pass
