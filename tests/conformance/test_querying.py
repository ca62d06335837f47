from commandbus.testing.conformance.querying import QueryingSuite


class TestQuerying(QueryingSuite):
    pass
