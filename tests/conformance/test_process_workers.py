from commandbus.testing.conformance.process_workers import ChainSuite, ProcessWorkersSuite


class TestProcessWorkers(ProcessWorkersSuite):
    pass


class TestChain(ChainSuite):
    pass
