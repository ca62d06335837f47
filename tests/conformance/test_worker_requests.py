from commandbus.testing.conformance.worker_requests import WorkerRequestsSuite


class TestWorkerRequests(WorkerRequestsSuite):
    pass
