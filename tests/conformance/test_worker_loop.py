from commandbus.testing.conformance.worker_loop import WorkerLoopSuite


class TestWorkerLoop(WorkerLoopSuite):
    pass
