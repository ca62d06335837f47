from commandbus.testing.conformance.retries import RetriesSuite


class TestRetries(RetriesSuite):
    pass
