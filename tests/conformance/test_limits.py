from commandbus.testing.conformance.limits import LimitsSuite, SendersSuite, TagsSuite


class TestLimits(LimitsSuite):
    pass


class TestTags(TagsSuite):
    pass


class TestSenders(SendersSuite):
    pass
