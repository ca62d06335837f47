from commandbus.testing.conformance.retention import HistorySuite, RetentionSuite, SearchSuite


class TestRetention(RetentionSuite):
    pass


class TestHistory(HistorySuite):
    pass


class TestSearch(SearchSuite):
    pass
