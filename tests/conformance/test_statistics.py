from commandbus.testing.conformance.statistics import StatisticsSuite


class TestStatistics(StatisticsSuite):
    pass
