from commandbus.testing.conformance.insight import RedriveSuite, WhySuite, WorkersSuite


class TestWhy(WhySuite):
    pass


class TestWorkers(WorkersSuite):
    pass


class TestRedrive(RedriveSuite):
    pass
